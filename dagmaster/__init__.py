"""Durable workflows on PostgreSQL. The API for authors of workflows and handlers, and for programs that submit jobs."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagmaster.client import AsyncClient, Client
    from dagmaster.handlers import (
        Checkpoint,
        Context,
        HandlerContext,
        HandlerResult,
        Interrupted,
        Permanent,
        Retry,
        handler,
        register_handler,
    )
    from dagmaster.model.states import JobStatus, NodeStatus
    from dagmaster.python import sync
    from dagmaster.python.apply_items import apply, create_task
    from dagmaster.python.context import OrchContext, get_current_context
    from dagmaster.python.data_context import DataContext
    from dagmaster.python.graphs import Group, Task
    from dagmaster.python.jobs import (
        add_task_to_job,
        cancel_job,
        create_job,
        deregister_worker,
        get_job,
        get_logs_dir,
        get_task,
        health_check,
        list_jobs,
        list_workers,
        register_worker,
        retry_failed_tasks,
        worker_heartbeat,
    )
    from dagmaster.python.local import run_job_test
    from dagmaster.python.map_reduce import map, reduce
    from dagmaster.python.records import JobFailed, JobInfo, TaskInfo, TaskState, WorkerInfo, WorkerState
    from dagmaster.python.sync import apply_sync
    from dagmaster.python.tasks import call, current_task, task
    from dagmaster.python.workflows import job, workflow

    __version__: str

__all__ = [
    "AsyncClient",
    "Checkpoint",
    "Client",
    "Context",
    "DataContext",
    "Group",
    "HandlerContext",
    "HandlerResult",
    "Interrupted",
    "JobFailed",
    "JobInfo",
    "JobStatus",
    "NodeStatus",
    "OrchContext",
    "Permanent",
    "Retry",
    "Task",
    "TaskInfo",
    "TaskState",
    "WorkerInfo",
    "WorkerState",
    "add_task_to_job",
    "apply",
    "apply_sync",
    "call",
    "cancel_job",
    "create_job",
    "create_task",
    "current_task",
    "deregister_worker",
    "get_current_context",
    "get_job",
    "get_logs_dir",
    "get_task",
    "handler",
    "health_check",
    "job",
    "list_jobs",
    "list_workers",
    "map",
    "reduce",
    "register_handler",
    "register_worker",
    "retry_failed_tasks",
    "run_job_test",
    "sync",
    "task",
    "worker_heartbeat",
    "workflow",
]
# The modules of the names that are not in dagmaster.handlers.
HOMES = {
    **dict.fromkeys(("AsyncClient", "Client"), "dagmaster.client"),
    **dict.fromkeys(("apply", "create_task"), "dagmaster.python.apply_items"),
    **dict.fromkeys(("OrchContext", "get_current_context"), "dagmaster.python.context"),
    **dict.fromkeys(("Group", "Task"), "dagmaster.python.graphs"),
    **dict.fromkeys(("map", "reduce"), "dagmaster.python.map_reduce"),
    **dict.fromkeys(("add_task_to_job", "cancel_job", "create_job", "get_job", "get_task"), "dagmaster.python.jobs"),
    **dict.fromkeys(("list_jobs", "retry_failed_tasks", "list_workers", "register_worker"), "dagmaster.python.jobs"),
    **dict.fromkeys(("deregister_worker", "worker_heartbeat"), "dagmaster.python.jobs"),
    "DataContext": "dagmaster.python.data_context",
    "apply_sync": "dagmaster.python.sync",
    **dict.fromkeys(("call", "current_task", "task"), "dagmaster.python.tasks"),
    **dict.fromkeys(("job", "workflow"), "dagmaster.python.workflows"),
    "JobFailed": "dagmaster.python.records",
    "run_job_test": "dagmaster.python.local",
    **dict.fromkeys(("JobStatus", "NodeStatus"), "dagmaster.model.states"),
    **dict.fromkeys(("JobInfo", "TaskInfo", "TaskState", "WorkerInfo", "WorkerState"), "dagmaster.python.records"),
    **dict.fromkeys(("get_logs_dir", "health_check"), "dagmaster.python.jobs"),
}


def __getattr__(name: str) -> Any:
    # Loaded on first use: every command imports this module, and few commands need these names.
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("dagmaster")
    if name == "sync":
        return importlib.import_module("dagmaster.python.sync")
    if name in __all__:
        return getattr(importlib.import_module(HOMES.get(name, "dagmaster.handlers")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    # Names are loaded on first use, so globals() lacks them; and it has internals that a prompt should not complete.
    return sorted(__all__)
