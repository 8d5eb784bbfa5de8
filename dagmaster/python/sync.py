"""The jobs API without asyncio: the same functions, without `await`."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from dagmaster.errors import Conflict
from dagmaster.handlers.futures import has_running_loop
from dagmaster.python import apply_items, jobs

P = ParamSpec("P")
R = TypeVar("R")

__all__ = [
    "add_task_to_job",
    "apply",
    "apply_sync",
    "cancel_job",
    "create_job",
    "deregister_worker",
    "get_job",
    "get_task",
    "list_jobs",
    "list_workers",
    "register_worker",
    "retry_failed_tasks",
    "worker_heartbeat",
]


def _twin(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    @functools.wraps(function)
    def blocking(*args: P.args, **kwargs: P.kwargs) -> R:
        if has_running_loop():
            raise Conflict(f"an event loop is running: use `await dagmaster.{function.__name__}(...)`")
        return asyncio.run(function(*args, **kwargs))

    return blocking


apply = apply_sync = _twin(apply_items.apply)
add_task_to_job = _twin(jobs.add_task_to_job)
cancel_job = _twin(jobs.cancel_job)
create_job = _twin(jobs.create_job)
deregister_worker = _twin(jobs.deregister_worker)
get_job = _twin(jobs.get_job)
get_task = _twin(jobs.get_task)
list_jobs = _twin(jobs.list_jobs)
list_workers = _twin(jobs.list_workers)
register_worker = _twin(jobs.register_worker)
retry_failed_tasks = _twin(jobs.retry_failed_tasks)
worker_heartbeat = _twin(jobs.worker_heartbeat)
