"""The heartbeat rows of orchestrators and workers: registration, liveness, and takeover from lost instances."""

import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dagmaster.ids import JobId, WorkerId
from dagmaster.snowflakes import new_id
from dagmaster.store.connect import Connection, Row, encode_json
from dagmaster.store.statements import fetch, fetch_one, run


@dataclass(frozen=True, slots=True)
class Instance:
    instance_id: str
    hostname: str
    pid: int
    host_key: str

    @property
    def worker_id(self) -> WorkerId:
        """The id of a worker instance."""
        return WorkerId(self.instance_id)


def this_instance() -> Instance:
    return Instance(str(new_id()), socket.gethostname(), os.getpid(), host_key())


def host_key() -> str:
    """Equal for processes that can see each other's pids: same boot, same pid namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:  # Missing or hidden.
        return f"unknown-{new_id()}"


async def register_orchestrator(conn: Connection, me: Instance) -> None:
    await run(conn, "register_orchestrator", asdict(me))


async def beat_orchestrator(
    conn: Connection, me: Instance, jobs_owned: int, stats: Mapping[str, Any]
) -> datetime | None:
    values = {"instance_id": me.instance_id, "jobs_owned": jobs_owned, "stats": encode_json(stats)}
    return await _now(conn, "beat_orchestrator", values)


async def stop_orchestrator(conn: Connection, me: Instance, stats: Mapping[str, Any]) -> None:
    await run(conn, "stop_orchestrator", {"instance_id": me.instance_id, "stats": encode_json(stats)})


async def stall_orchestrator(conn: Connection, me: Instance, stats: Mapping[str, Any]) -> None:
    await run(conn, "stall_orchestrator", {"instance_id": me.instance_id, "stats": encode_json(stats)})


async def take_over_jobs(conn: Connection, me: Instance, *, threshold_seconds: float, limit: int) -> list[JobId]:
    values = {"instance_id": me.instance_id, "threshold_seconds": threshold_seconds, "limit": limit}
    return [row["job_id"] for row in await fetch(conn, "take_over_jobs", values)]


async def hand_over_jobs(conn: Connection, me: Instance, *, threshold_seconds: float) -> int:
    values = {"instance_id": me.instance_id, "threshold_seconds": threshold_seconds}
    return len(await fetch(conn, "hand_over_jobs", values))


async def register_worker(
    conn: Connection,
    me: Instance,
    queues: Sequence[str],
    concurrency: int,
    handlers: Collection[str] | None = None,
    *,
    key_id: str | None = None,
) -> None:
    """Register for tasks of these queues and handlers; None means all handlers. Remote workers have an API key."""
    names = sorted(handlers) if handlers is not None else None
    values = {"queues": list(queues), "concurrency": concurrency, "handlers": names, "key_id": key_id}
    await run(conn, "register_worker", asdict(me) | values)


async def beat_worker(conn: Connection, worker_id: WorkerId, heartbeat: Mapping[str, Any]) -> datetime | None:
    """None if the worker was declared lost: its tasks belong to others now."""
    return await _now(conn, "beat_worker", _counted(worker_id, heartbeat))


async def stop_worker(conn: Connection, worker_id: WorkerId, heartbeat: Mapping[str, Any]) -> None:
    await run(conn, "stop_worker", _counted(worker_id, heartbeat))


async def set_desired_state(conn: Connection, worker_id: WorkerId, wanted: str) -> bool:
    """Ask a worker to run, drain or stop; it notices within a second. False if it is not active."""
    return bool(await fetch(conn, "set_desired_state", {"worker_id": worker_id, "wanted": wanted}))


async def mark_dead_lost(conn: Connection, key: str) -> list[str]:
    """Mark dead instances of this machine as lost, without waiting for the threshold."""
    rows = await fetch(conn, "living_instances", {"host_key": key})
    dead = [row["instance_id"] for row in rows if is_gone(row["pid"])]
    if dead:
        await run(conn, "mark_instances_lost", {"instance_ids": dead})
    return dead


async def rescue_tasks(
    conn: Connection, *, lost_after_seconds: float, may_judge: Callable[[], bool] = lambda: True
) -> int:
    """Declare workers without heartbeat lost, take back their tasks, and inform the owners.

    `may_judge` is called between the read and the decision: the read itself may have taken too long.
    """
    silent = await fetch(conn, "silent_workers", {"lost_after_seconds": lost_after_seconds})
    if may_judge() and silent:
        ids, beats = [row["worker_id"] for row in silent], [row["last_heartbeat"] for row in silent]
        await run(conn, "give_up_workers", {"worker_ids": ids, "heartbeats": beats})
    return len(await fetch(conn, "rescue_tasks", {}))


async def forget_instances(conn: Connection, *, days: int) -> None:
    await run(conn, "forget_instances", {"days": days})
    await run(conn, "forget_handlers", {"days": days})


def is_gone(pid: int) -> bool:
    """Whether this process of this machine has certainly ended. If that is unknown, the lease decides: another user's
    processes may be hidden in /proc, but the existence of a pid can always be checked.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # It exists, and belongs to another user.
        pass
    return _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """A zombie is dead: its parent has not reaped it yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")


def _counted(worker_id: WorkerId, heartbeat: Mapping[str, Any]) -> Row:
    return {
        "instance_id": worker_id,
        "tasks_completed": heartbeat.get("completed", 0),
        "tasks_failed": heartbeat.get("failed", 0),
        "stats": encode_json(heartbeat.get("stats") or {}),
    }


async def _now(conn: Connection, name: str, values: Mapping[str, Any]) -> datetime | None:
    row = await fetch_one(conn, name, values)
    return row["now"] if row else None
