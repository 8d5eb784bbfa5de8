"""Handlers with their own ledger, so that executions can be counted without the engine."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
from pydantic import BaseModel

from dagmaster.handlers import HandlerContext, Permanent, handler
from dagmaster.handlers.basic import Phases, multi_phase

LEDGER = "ACCEPTANCE_LEDGER"  # The variable with its URL.
PATIENCE_SECONDS = 60.0
PHASE = "phase_1"
# `at` is the clock of this machine, which is also the server's: a row waits during an outage, its time does not.
MAKE_LEDGER = """
    CREATE TABLE acceptance_ledger (
        execution_id text NOT NULL,
        event text NOT NULL,
        task_id text NOT NULL,
        job_id bigint NOT NULL,
        node_id text NOT NULL,
        attempt int NOT NULL,
        pid int NOT NULL,
        at timestamptz NOT NULL,
        PRIMARY KEY (execution_id, event)
    );
    CREATE INDEX ON acceptance_ledger (task_id)
"""
# The tasks of these nodes start, and wait before they note their end. It needs no session, so a crash does not end it.
MAKE_HOLDS = """
    CREATE TABLE IF NOT EXISTS acceptance_holds (node_id text PRIMARY KEY);
    CREATE OR REPLACE FUNCTION await_release() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        WHILE EXISTS (SELECT FROM acceptance_holds h WHERE h.node_id = NEW.node_id) LOOP
            PERFORM pg_sleep(0.01);
        END LOOP;
        RETURN NEW;
    END $$;
    CREATE OR REPLACE TRIGGER await_release BEFORE INSERT ON acceptance_ledger
        FOR EACH ROW WHEN (NEW.event = 'end') EXECUTE FUNCTION await_release()
"""
# Repeated after a lost response, it is stored once.
WRITE = """
    INSERT INTO acceptance_ledger (execution_id, event, task_id, job_id, node_id, attempt, pid, at)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
"""
HELD = "SELECT count(*) FROM acceptance_holds WHERE node_id = %s"
PRESENT = "SELECT count(DISTINCT node_id) FROM acceptance_ledger WHERE job_id = %s AND event = 'start'"

Row = tuple[Any, ...]


class Ledger:
    """One connection for all threads of a worker, reopened after a restart of PostgreSQL."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._conn: psycopg.Connection | None = None

    def ask(self, query: str, *values: Any) -> Row | None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self._lock:
            while True:
                try:
                    return self._try(query, values)
                except psycopg.OperationalError:
                    self._conn = None
                    assert time.monotonic() < deadline, "the ledger cannot be reached"
                    time.sleep(0.05)

    def _try(self, query: str, values: Row) -> Row | None:
        if self._conn is None or self._conn.closed:
            self._conn = psycopg.connect(os.environ[LEDGER], autocommit=True, connect_timeout=30)
        cursor = self._conn.execute(query, values)
        return cursor.fetchone() if cursor.description else None


ledger = Ledger()


class Execution:
    """One run of a handler. Create it first: its creation time is the start of the handler."""

    def __init__(self, ctx: HandlerContext) -> None:
        self._ctx, self._id = ctx, uuid4().hex
        self._began_at = datetime.now(UTC)

    def write(self, event: str) -> None:
        ctx, at = self._ctx, self._began_at if event == "start" else datetime.now(UTC)
        task = (ctx.task_id, ctx.job_id, ctx.node_id, ctx.retry_count)
        ledger.ask(WRITE, self._id, event, *task, os.getpid(), at)


class Work(BaseModel):
    """`first_seconds` is the duration of the first attempt; the first `fail_attempts` attempts fail."""

    value: Any = None
    seconds: float = 0.02
    first_seconds: float | None = None
    fail_attempts: int = 0
    permanent: bool = False

    def seconds_of(self, ctx: HandlerContext) -> float:
        is_first = ctx.retry_count == 0 and self.first_seconds is not None
        return self.first_seconds if is_first else self.seconds

    def fails(self, ctx: HandlerContext) -> bool:
        return self.permanent or ctx.retry_count < self.fail_attempts

    @property
    def ending(self) -> str:
        return "fail for good" if self.permanent else "fail"

    def error(self) -> Exception:
        return (Permanent if self.permanent else RuntimeError)("failed, as requested")


@handler("ledger.work", queue="work", params=Work)
def work(ctx: HandlerContext, params: Work) -> dict[str, Any]:
    """Runs in a thread, which continues when its task is revoked."""
    execution = Execution(ctx)
    execution.write("start")
    time.sleep(params.seconds_of(ctx))
    if params.fails(ctx):
        execution.write(params.ending)
        raise params.error()
    execution.write("end")
    return {"value": params.value}


@handler("ledger.wait", queue="work", params=Work)
async def wait(ctx: HandlerContext, params: Work) -> dict[str, Any]:
    """Runs in the worker's event loop: nothing lies between its decision to start and the start."""
    execution = Execution(ctx)
    await asyncio.to_thread(execution.write, "start")
    await asyncio.sleep(params.seconds_of(ctx))
    if params.fails(ctx):
        await asyncio.to_thread(execution.write, params.ending)
        raise params.error()
    await asyncio.to_thread(execution.write, "end")
    return {"value": params.value}


class Phase(BaseModel):
    """`seconds` is how long it continues after its checkpoint, unless it resumes there."""

    seconds: float


@handler("ledger.phase", queue="work", params=Phase)
async def phase(ctx: HandlerContext, params: Phase) -> AsyncIterator[dict[str, Any]]:
    is_first = bool(ctx.remaining([PHASE]))
    if is_first:
        yield {"type": "checkpoint", "phase": PHASE}
        await asyncio.sleep(params.seconds)
    yield {"type": "result", "output": {"has_resumed": not is_first}}


@handler("ledger.held_phases", queue="work", params=Phases)
async def held_phases(ctx: HandlerContext, params: Phases) -> AsyncIterator[dict[str, Any]]:
    """The phases of `multi_phase`; one that the test holds does not end."""
    async for said in multi_phase(ctx, params):
        if said["type"] == "checkpoint":
            while (await asyncio.to_thread(ledger.ask, HELD, said["phase"]))[0]:  # noqa: ASYNC110 - it is a table
                await asyncio.sleep(0.02)
        yield said


class Meeting(BaseModel):
    """`seconds` is how long to wait for the others."""

    people: int
    seconds: float


@handler("ledger.meet", queue="work", params=Meeting)
async def meet(ctx: HandlerContext, params: Meeting) -> dict[str, Any]:
    """Ends when this many nodes of the job run at the same time, so it needs as many free slots."""
    execution = Execution(ctx)
    await asyncio.to_thread(execution.write, "start")
    deadline = time.monotonic() + params.seconds
    while (await asyncio.to_thread(ledger.ask, PRESENT, ctx.job_id))[0] < params.people:
        if time.monotonic() > deadline:
            raise Permanent("the others did not come: a slot is held")
        await asyncio.sleep(0.2)
    await asyncio.to_thread(execution.write, "end")
    return {"value": params.people}
