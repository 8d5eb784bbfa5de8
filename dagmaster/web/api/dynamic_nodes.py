"""Nodes added to a running job."""

from typing import Any

import orjson
from fastapi import APIRouter, Response

from dagmaster.authoring.implicit import default_queue
from dagmaster.handlers import Handler
from dagmaster.model.added_nodes import added_id
from dagmaster.schemas.dynamic_nodes import AddTasks, NewTask, TasksAccepted
from dagmaster.snowflakes import new_id
from dagmaster.store.dynamic_nodes import add_to_job, until_added
from dagmaster.web.access import OPERATORS, Admitted, Job
from dagmaster.web.errors import documented
from dagmaster.web.services import Conn, ServicesDep

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

WAIT_SECONDS = 3.0


@router.post(
    "/{job_id}/tasks",
    status_code=201,
    response_model=TasksAccepted,
    responses={202: {"model": TasksAccepted}, **documented(404, 409, 413)},
    dependencies=[OPERATORS],
)
async def add_tasks(
    job: Job, body: AddTasks, caller: Admitted, services: ServicesDep, conn: Conn, response: Response
) -> TasksAccepted:
    """Add tasks to an unfinished job: 201 if its owner has added them, 202 if it has yet to.

    Queue, timeout and retries default to those of the handler, then to the settings.
    """
    known, queue = services.registry.spellings(), default_queue(services.settings)
    rows = [_row(task, known.get(task.handler), queue) for task in body.tasks]
    node_ids = await add_to_job(conn, job["job_id"], [orjson.dumps({"nodes": rows})], actor=caller.name or None)
    services.wake()
    is_done = await until_added(conn, job["job_id"], node_ids, seconds=WAIT_SECONDS)
    response.status_code = 201 if is_done else 202
    return TasksAccepted(job_id=str(job["job_id"]), node_ids=node_ids, is_done=is_done)


def _row(task: NewTask, handler: Handler | None, queue: str | None) -> dict[str, Any]:
    number = new_id()
    usual: dict[str, Any] = {"queue": queue}
    if handler is not None:
        retry = handler.retry.model_dump(mode="json") if handler.retry else None
        usual = {"queue": handler.queue or queue, "timeout_seconds": handler.timeout_seconds, "retry": retry}
    return {**usual, **task.model_dump(exclude_none=True), "id": added_id(None, number), "task": number}
