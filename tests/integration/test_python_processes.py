"""Python tasks in handler processes; separate from the others because each worker starts a fork server for them."""

import os
from typing import Any

import pytest

from dagmaster import apply_sync, create_task, task, workflow
from dagmaster.python.local import LocalFleet


@pytest.fixture(autouse=True)
def installation(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", dsn)
    monkeypatch.setenv("DAGMASTER_POLL_INTERVAL_SECONDS", "0.1")
    monkeypatch.setenv("DAGMASTER_WORKER_QUEUE", "q")
    yield
    LocalFleet.close_shared()


@task
def number(n: int) -> int:
    return n


@task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@task(isolation="process")
def where() -> int:
    return os.getpid()


@task(isolation="process")
def adding() -> Any:
    parts = [create_task(number, {"n": n}) for n in range(3)]
    return apply_sync([*parts, create_task(total, {"numbers": parts})])[-1]


def test_a_task_in_its_own_process_can_add_tasks() -> None:
    @workflow
    def apart() -> dict[str, int]:
        return {"pid": where(), "sum": adding()}

    result = apart.run()
    assert result["pid"] not in (0, os.getpid())
    assert result["sum"] == 3
