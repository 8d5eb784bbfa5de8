"""The health of the database: conditions that slow it down or endanger data, each in one sentence."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter
from typing import Any

from dagmaster.store.connect import Connection, Row
from dagmaster.store.statements import fetch, fetch_one

MANY_DEAD_ROWS = 100_000
OLD_XID = 1_000_000_000
VERY_OLD_XID = 1_800_000_000
OLD_SLOT_XMIN = 1_000_000
SUPPORTED_FROM = 150_000


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Point:
    name: str
    state: State
    sentence: str
    data: Mapping[str, Any] = field(default_factory=dict)


async def examine_database(conn: Connection) -> list[Point]:
    """PostgreSQL itself hides what this role may not see."""
    server = await _row(conn, "server_health")
    return [
        _server(server),
        _durability(server),
        _autovacuum(server),
        _transaction(await _row(conn, "oldest_transaction", idle=False)),
        _idle_transaction(await _row(conn, "oldest_transaction", idle=True)),
        _lock_wait(await _row(conn, "longest_lock_wait")),
        _prepared(server),
        _slots(server),
        _xid_age(server),
        _connections(await connection_use(conn)),
        _partitions(await _row(conn, "partition_health")),
        _tables(await fetch(conn, "table_health")),
    ]


async def health_check(
    conn: Connection, *, worker_lost_seconds: float = 55.0, orphan_seconds: float = 120.0, stuck_seconds: float = 1800.0
) -> Row:
    """Whether jobs can progress: the database responds, a worker and an orchestrator run, and no task is abandoned."""
    began = perf_counter()
    limits = {
        "worker_lost_seconds": worker_lost_seconds,
        "orphan_seconds": orphan_seconds,
        "stuck_seconds": stuck_seconds,
    }
    signs = await _row(conn, "vital_signs", **limits)
    stale = signs["stuck_tasks"] + signs["abandoned_tasks"]
    is_well = signs["workers"] and signs["orchestrators"] and not stale
    return {
        "status": "ok" if is_well else "degraded",
        "database": {"status": "ok", "latency_ms": round((perf_counter() - began) * 1000, 3), "now": signs["now"]},
        "active_workers": signs["workers"],
        "active_orchestrators": signs["orchestrators"],
        "stale_tasks": stale,
        "stuck_tasks": signs["stuck_tasks"],
        "abandoned_tasks": signs["abandoned_tasks"],
    }


async def connection_use(conn: Connection) -> Row:
    return await _row(conn, "connection_use")


async def _row(conn: Connection, name: str, **values: Any) -> Row:
    return await fetch_one(conn, name, values) or {}


def _graded(value: float, warning: float, problem: float) -> State:
    if value > problem:
        return State.PROBLEM
    return State.WARNING if value > warning else State.OK


def _server(row: Mapping[str, Any]) -> Point:
    is_old = row["version_number"] < SUPPORTED_FROM
    advice = f"is older than {SUPPORTED_FROM // 10_000}: upgrade it" if is_old else "is supported"
    state = State.PROBLEM if is_old else State.OK
    return Point("server", state, f"PostgreSQL {row['version']} {advice}.", {"version": row["version"]})


def _durability(row: Mapping[str, Any]) -> Point:
    data = {name: row[name] for name in ("fsync", "full_page_writes", "synchronous_commit")}
    if "off" in (row["fsync"], row["full_page_writes"]):
        sentence = "fsync or full_page_writes is off: a crash of the machine may destroy the database."
        return Point("durability", State.PROBLEM, sentence, data)
    if row["synchronous_commit"] == "off":
        sentence = "synchronous_commit is off: a crash may lose the last transactions."
        return Point("durability", State.WARNING, sentence, data)
    return Point("durability", State.OK, "Committed data survives a crash.", data)


def _autovacuum(row: Mapping[str, Any]) -> Point:
    is_on = row["autovacuum"] == "on"
    sentence = "Autovacuum is on." if is_on else "Autovacuum is off: tables will grow and slow down; turn it on."
    return Point("autovacuum", State.OK if is_on else State.PROBLEM, sentence, {"autovacuum": row["autovacuum"]})


def _transaction(row: Mapping[str, Any]) -> Point:
    if not row:
        return Point("oldest_transaction", State.OK, "No transaction is open.")
    sentence = f"The oldest transaction is {row['seconds']:.0f} s old; rows that died since then cannot be removed."
    return Point("oldest_transaction", _graded(row["seconds"], 300, 3600), sentence, row)


def _idle_transaction(row: Mapping[str, Any]) -> Point:
    if not row:
        return Point("idle_in_transaction", State.OK, "No session is idle in a transaction.")
    name = row["application_name"] or "A session"
    sentence = f"{name} (pid {row['pid']}) is idle in a transaction; end it with pg_terminate_backend."
    return Point("idle_in_transaction", _graded(row["seconds"], 60, 600), sentence, row)


def _lock_wait(row: Mapping[str, Any]) -> Point:
    if not row:
        return Point("lock_wait", State.OK, "No session waits for a lock.")
    sentence = f"pid {row['pid']} has waited {row['seconds']:.1f} s for a lock; pg_blocking_pids names the holder."
    return Point("lock_wait", _graded(row["seconds"], 5, 60), sentence, row)


def _prepared(row: Mapping[str, Any]) -> Point:
    data = {"prepared": row["prepared"], "oldest_seconds": row["oldest_prepared_seconds"]}
    if not row["prepared"]:
        return Point("prepared_transactions", State.OK, "No transaction is prepared.", data)
    sentence = f"{row['prepared']} prepared transactions hold back the removal of dead rows; commit or roll them back."
    return Point("prepared_transactions", _graded(row["oldest_prepared_seconds"], 60, 3600), sentence, data)


def _slots(row: Mapping[str, Any]) -> Point:
    data = {"slots": row["slots"], "xmin_age": row["slot_xmin_age"]}
    if row["slot_xmin_age"] <= OLD_SLOT_XMIN:
        return Point("replication_slots", State.OK, "No replication slot holds back the removal of dead rows.", data)
    sentence = "A replication slot holds back the removal of dead rows; drop it if its consumer is gone."
    return Point("replication_slots", State.WARNING, sentence, data)


def _xid_age(row: Mapping[str, Any]) -> Point:
    age = row["xid_age"]
    state = _graded(age, OLD_XID, VERY_OLD_XID)
    advice = "far from the limit" if state is State.OK else "vacuum the database before it stops accepting writes"
    return Point("xid_age", state, f"The oldest transaction id is {age:,} old: {advice}.", {"age": age})


def _connections(row: Mapping[str, Any]) -> Point:
    used, most = row["used"], row["most"]
    state = _graded(used / most, 0.8, 0.95)
    advice = "" if state is State.OK else "; raise max_connections or put a pooler in front"
    return Point("connections", state, f"{used} of {most} connections are used{advice}.", row)


def _partitions(row: Mapping[str, Any]) -> Point:
    sentence = f"The timeline has {row['partitions']} partitions, from {row['oldest']} to {row['newest']}"
    if row["rows_in_default"]:
        return Point("partitions", State.WARNING, f"{sentence}, and rows outside of them.", row)
    return Point("partitions", State.OK, f"{sentence}.", row)


def _tables(rows: list[Row]) -> Point:
    dead = [row["name"] for row in rows if row["dead_rows"] > max(MANY_DEAD_ROWS, row["live_rows"] / 5)]
    data = {row["name"]: {name: row[name] for name in row if name != "name"} for row in rows}
    megabytes = sum(row["bytes"] for row in rows) / 1024**2
    if dead:
        sentence = f"Many dead rows in {', '.join(dead)}: vacuum does not keep up, or a transaction holds it back."
        return Point("tables", State.WARNING, sentence, data)
    return Point("tables", State.OK, f"The tables take {megabytes:,.0f} MB, and vacuum keeps up.", data)
