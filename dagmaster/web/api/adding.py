"""Nodes that are added to a job while it runs."""

import asyncio
from typing import Any

import orjson
from fastapi import APIRouter, Response

from dagmaster.authoring.implicit import default_queue
from dagmaster.ids import new_id
from dagmaster.model.added import added_id
from dagmaster.schemas.adding import AddTasks, NewTask, TasksAccepted
from dagmaster.store.adding import add_to_job, are_added
from dagmaster.web.access import OPERATORS, Admitted, Job
from dagmaster.web.errors import documented
from dagmaster.web.services import Conn, Given

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

WAIT_SECONDS = 3.0
LOOK_SECONDS = 0.03


@router.post(
    "/{job_id}/tasks",
    status_code=201,
    response_model=TasksAccepted,
    responses={202: {"model": TasksAccepted}, **documented(404, 409, 413)},
    dependencies=[OPERATORS],
)
async def add_tasks(
    job: Job, body: AddTasks, caller: Admitted, services: Given, conn: Conn, response: Response
) -> TasksAccepted:
    """Add tasks to a job that has not ended: 201 when its owner has taken them in, 202 when it has still to."""
    rows = [_row(task, default_queue(services.settings)) for task in body.tasks]
    node_ids = await add_to_job(conn, job["job_id"], [orjson.dumps({"nodes": rows})], actor=caller.name or None)
    services.wake()
    is_done = await _is_taken_in(conn, job["job_id"], node_ids)
    response.status_code = 201 if is_done else 202
    return TasksAccepted(job_id=str(job["job_id"]), node_ids=node_ids, is_done=is_done)


def _row(task: NewTask, queue: str | None) -> dict[str, Any]:
    number = new_id()
    given = task.model_dump(exclude_none=True)
    return {"queue": queue, **given, "id": added_id(None, number), "task": number}


async def _is_taken_in(conn: Conn, job_id: int, node_ids: list[str]) -> bool:
    deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
    while not (done := await are_added(conn, job_id, node_ids)):
        if asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(LOOK_SECONDS)
    return done
