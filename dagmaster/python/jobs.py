"""The jobs API, for Python programs with access to the database. Each call is a separate operation."""

import os
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dagmaster.authoring.contracts import known_contracts, open_rules
from dagmaster.authoring.implicit import add_ends, resolve_queues
from dagmaster.authoring.preparation import prepare
from dagmaster.errors import Invalid, UnknownHandler
from dagmaster.handlers import registry
from dagmaster.ids import JobId, WorkerId
from dagmaster.model.contracts import Contracts
from dagmaster.model.graph import Graph
from dagmaster.model.problems import did_you_mean
from dagmaster.model.workflow import InputSpec, InputType, TaskNode, Workflow
from dagmaster.python.apply_items import ACTOR, Callback, apply, create_task
from dagmaster.python.context import session
from dagmaster.python.graphs import Task
from dagmaster.python.handles import quoted
from dagmaster.python.records import JobInfo, TaskInfo, WorkerInfo, WorkerState
from dagmaster.python.values import encode
from dagmaster.service.context import ServiceContext
from dagmaster.service.contract import Cancel, JobChange, Retry
from dagmaster.service.job_control import control_job
from dagmaster.service.submission import new_job, store_job
from dagmaster.settings import Settings, load_settings
from dagmaster.snowflakes import new_id
from dagmaster.store import health, instances, jobs_api
from dagmaster.store import jobs as job_store
from dagmaster.store import workers as worker_store
from dagmaster.store import workflows as workflow_store
from dagmaster.store.connect import Connection
from dagmaster.store.jobs_api import ENTRY, SUBMITTED_BY

WITHIN_SECONDS = 5.0
MAX_ID_LENGTH = 64


async def create_job(
    name: str, entry: Task | Callback, kwargs: Mapping[str, Any] | None = None, *, priority: int = 0
) -> JobInfo:
    """Submit a job that starts with this task, which may add others. Submitting a task again returns the same job."""
    task = entry if isinstance(entry, Task) else create_task(entry, kwargs)
    if isinstance(entry, Task) and kwargs:
        raise Invalid("the entry task already has its arguments; omit kwargs")
    if task.previous or task.group is not None:
        raise Invalid(f"{task} is the entry of a job: it cannot have dependencies or be in a group")
    settings = load_settings()
    arguments = encode(task.kwargs)
    async with session() as conn:
        contracts = await known_contracts(conn, registry)
        _check_known(task.handler, contracts)
        job = new_job(
            _graph(name, task, settings, contracts),
            {"kwargs": arguments},
            settings,
            priority=priority,
            submitted_by=SUBMITTED_BY,
            idempotency_key=str(task.id),
            actor=ACTOR,
        )
        submitted = await store_job(_context(conn), job)
        [info] = await _infos(conn, [await job_store.get_job(conn, submitted.job_id)])
    task.job_id, task.node_id = submitted.job_id, ENTRY
    return info


async def _infos(conn: Connection, rows: Sequence[Mapping[str, Any]]) -> list[JobInfo]:
    names = await workflow_store.workflow_names(conn, [row["workflow_hash"] for row in rows])
    return [JobInfo.of(row, names.get(row["workflow_hash"])) for row in rows]


def _check_known(handler: str, contracts: Contracts) -> None:
    """Raises UnknownHandler if neither this process nor a worker has the handler."""
    if handler not in contracts:
        raise UnknownHandler(
            f"no handler is named {handler!r}, here or at any worker{did_you_mean(handler, contracts)}; a function "
            "of a module needs @task, or its module in DAGMASTER_TASK_MODULES"
        )


def _graph(name: str, task: Task, settings: Settings, contracts: Contracts) -> Graph:
    """The arguments become inputs, so that all jobs of this task share one definition."""
    node = TaskNode(
        handler=task.handler,
        queue=task.queue,
        params={key: f"{{{{ inputs.kwargs[{quoted(key)}] }}}}" for key in task.kwargs},
        timeout_seconds=task.timeout_seconds,
        retry=task.retry,
    )
    workflow = Workflow(
        workflow_id=job_name(name),
        name=name[:128],
        inputs={"kwargs": InputSpec(type=InputType.OBJECT)},
        nodes=add_ends({ENTRY: node}),
    )
    return prepare(resolve_queues(workflow, open_rules(contracts, settings)), settings, contracts)


def job_name(name: str) -> str:
    """The name as a workflow id that is safe in URLs."""
    written = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:MAX_ID_LENGTH]
    if not written:
        raise Invalid(f"a job needs a name with letters or digits, not {name!r}")
    return written


async def get_job(job_id: int) -> JobInfo:
    async with session() as conn:
        [info] = await _infos(conn, [await job_store.get_job(conn, JobId(job_id))])
        return info


async def list_jobs(status: str | None = None, *, limit: int = 50, offset: int = 0) -> list[JobInfo]:
    """List jobs, newest first."""
    async with session() as conn:
        where = job_store.JobFilter(job_store.statuses_of(status))
        return await _infos(conn, await job_store.list_jobs(conn, where, limit=limit, offset=offset))


async def cancel_job(job_id: int, *, reason: str | None = None) -> JobInfo:
    """Cancel a job: running tasks are stopped, and no others start. Raises JobEnded.

    Returns the job once it is cancelled, or its current state if that takes longer than a few seconds.
    """
    return await _control(JobId(job_id), Cancel(reason))


async def retry_failed_tasks(job_id: int) -> JobInfo:
    """Retry the failed nodes of a job; completed nodes are not run again."""
    return await _control(JobId(job_id), Retry())


async def _control(job_id: JobId, command: JobChange) -> JobInfo:
    async with session() as conn:
        await control_job(_context(conn), job_id, command)
        [info] = await _infos(conn, [await job_store.get_job_head(conn, job_id)])
        return info


def _context(conn: Connection) -> ServiceContext:
    return ServiceContext(conn, load_settings(), source_app="python", actor=ACTOR, wait_seconds=WITHIN_SECONDS)


async def add_task_to_job(job_id: int, entrypoint: Callback, kwargs: Mapping[str, Any] | None = None) -> Task:
    """Add a task without dependencies. Raises JobEnded."""
    return await apply(create_task(entrypoint, kwargs), job_id)


async def get_task(task_id: int, job_id: int | None = None) -> TaskInfo:
    """Raises UnknownTask. With `job_id`, the task is found faster."""
    in_job = JobId(job_id) if job_id is not None else None
    async with session() as conn:
        return TaskInfo.of(task_id, await jobs_api.get_task_state(conn, task_id, in_job))


async def register_worker(hostname: str | None = None, pid: int | None = None) -> WorkerInfo:
    """Register an external worker. It receives no tasks, and is declared lost without heartbeats."""
    here = socket.gethostname()
    me = instances.Instance(
        str(new_id()),
        hostname or here,
        pid or os.getpid(),
        instances.host_key() if hostname in (None, here) else f"unknown-{new_id()}",
    )
    async with session() as conn:
        await instances.register_worker(conn, me, (), 0, ())
        [worker] = [row for row in await worker_store.list_workers(conn) if row["worker_id"] == me.instance_id]
        return WorkerInfo.of(worker)


async def worker_heartbeat(worker_id: str) -> None:
    """Raises WorkerGone when the worker was declared lost."""
    async with session() as conn:
        await jobs_api.touch_worker(conn, WorkerId(worker_id))


async def deregister_worker(worker_id: str) -> None:
    """Deregister; its tasks go to other workers."""
    async with session() as conn:
        await jobs_api.retire_worker(conn, WorkerId(worker_id))


async def list_workers(status: str | None = None) -> list[WorkerInfo]:
    """List workers, the newest of each status first."""
    if status is not None and status.lower() not in set(WorkerState):
        raise Invalid(f"{status!r} is not a worker status; valid are {', '.join(WorkerState)}")
    async with session() as conn:
        workers = [WorkerInfo.of(row) for row in await worker_store.list_workers(conn)]
    return [worker for worker in workers if status is None or worker.status == status.lower()]


async def health_check() -> dict[str, Any]:
    """The health: `status`, `database`, `active_workers`, `active_orchestrators` and `stale_tasks`."""
    settings = load_settings()
    async with session() as conn:
        return await health.health_check(
            conn,
            worker_lost_seconds=settings.worker_lost_after_seconds,
            orphan_seconds=settings.orphan_threshold_seconds,
            stuck_seconds=settings.stuck_after_seconds,
        )


def get_logs_dir() -> Path:
    """The folder of task logs; created if it is missing."""
    folder = load_settings().log_dir
    folder.mkdir(parents=True, exist_ok=True)
    return folder
