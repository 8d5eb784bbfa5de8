"""Read queues: their waiting and running tasks, and their consumers."""

import os
import re
from datetime import datetime
from typing import TypedDict

from dagmaster.ids import JobId
from dagmaster.snowflakes import new_id
from dagmaster.store.connect import Connection
from dagmaster.store.statements import fetch, fetch_as

# The queue of a program that runs its jobs alone, for Python and PostgreSQL. Other queues may start with "local-" too.
LOCAL_QUEUE = "^local-[0-9]+-[0-9]{10,}$"


class QueueRow(TypedDict):
    """`depth` counts claimable tasks; `held` ones belong to paused jobs."""

    queue: str
    depth: int
    held: int
    running: int
    consumers: int
    oldest_dispatched_at: datetime | None
    oldest_wait_seconds: float | None


class WaitingHandler(TypedDict):
    queue: str
    handler: str
    waiting: int
    oldest: datetime


class UnservedTasks(TypedDict):
    queue: str
    handler: str
    tasks: int


def new_local_queue() -> str:
    return f"local-{os.getpid()}-{new_id()}"


def is_local(queue: str) -> bool:
    """Whether only the program that made the queue consumes it."""
    return re.search(LOCAL_QUEUE, queue) is not None


async def list_queues(conn: Connection, *, lost_after_seconds: float | None = None) -> list[QueueRow]:
    """The queues with tasks or workers."""
    return await fetch_as(conn, QueueRow, "list_queues", {"lost_after_seconds": lost_after_seconds})


async def queue_depths(conn: Connection) -> dict[str, int]:
    """The number of claimable tasks by queue."""
    return {row["queue"]: row["depth"] for row in await fetch(conn, "queue_depths")}


async def waiting_handlers(conn: Connection) -> list[WaitingHandler]:
    return await fetch_as(conn, WaitingHandler, "waiting_handlers")


async def unserved_tasks(conn: Connection, job_id: JobId) -> list[UnservedTasks]:
    """A job's tasks that no worker can claim."""
    return await fetch_as(conn, UnservedTasks, "unserved_tasks", {"job_id": job_id})
