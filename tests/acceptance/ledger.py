"""Handlers with a ledger of their own, so that executions can be counted without asking the engine."""

import os
import threading
import time
from typing import Any

import psycopg
from pydantic import BaseModel

from dagmaster.handlers import HandlerContext, handler

LEDGER = "ACCEPTANCE_LEDGER"  # the variable that holds its address
PATIENCE_SECONDS = 60.0
MAKE_LEDGER = """
    CREATE TABLE acceptance_ledger (
        task_id text NOT NULL,
        node_id text NOT NULL,
        event text NOT NULL,
        pid int NOT NULL,
        at timestamptz NOT NULL DEFAULT clock_timestamp()
    )
"""
WRITE = "INSERT INTO acceptance_ledger (task_id, node_id, event, pid) VALUES (%s, %s, %s, %s)"


class Ledger:
    """One connection for all threads of a worker; opened again when PostgreSQL was restarted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._conn: psycopg.Connection | None = None

    def write(self, ctx: HandlerContext, event: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self._lock:
            while not self._try(ctx, event):
                assert time.monotonic() < deadline, "the ledger cannot be reached"
                time.sleep(0.05)

    def _try(self, ctx: HandlerContext, event: str) -> bool:
        try:
            if self._conn is None or self._conn.closed:
                self._conn = psycopg.connect(os.environ[LEDGER], autocommit=True, connect_timeout=5)
            self._conn.execute(WRITE, [ctx.task_id, ctx.node_id, event, os.getpid()])
        except psycopg.OperationalError:
            self._conn = None
            return False
        return True


ledger = Ledger()


class Work(BaseModel):
    """`first_seconds` is how long the first attempt takes; the first `fail_attempts` attempts fail."""

    value: Any = None
    seconds: float = 0.02
    first_seconds: float | None = None
    fail_attempts: int = 0


@handler("ledger.work", queue="work", params=Work)
def work(ctx: HandlerContext, params: Work) -> dict[str, Any]:
    ledger.write(ctx, "start")
    is_first = ctx.retry_count == 0 and params.first_seconds is not None
    time.sleep(params.first_seconds if is_first else params.seconds)
    if ctx.retry_count < params.fail_attempts:
        ledger.write(ctx, "fail")
        raise RuntimeError("failed, as it was asked to")
    ledger.write(ctx, "end")
    return {"value": params.value}
