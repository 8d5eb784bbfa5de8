"""Python tasks that share cached results."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from counting_handler import CACHED
from fleet import rows

from dagmaster import apply, apply_sync, create_task
from dagmaster import task as python_task
from dagmaster import workflow as python_workflow
from dagmaster.python.local import LocalFleet
from dagmaster.testing import run_workflow

seen: list[Any] = []


@python_task(cache="1h")
def square(x: int) -> int:
    seen.append(x)
    return x * x


@python_task(cache=True, isolation="process")
def moment() -> int:
    return time.time_ns()


@python_task(cache=True)
async def spreading(x: int) -> Any:
    seen.append(x)
    below = create_task(square, {"x": x})
    await apply([below])
    return x


@python_task(cache=True)
async def giving(x: int) -> Any:
    below = create_task(square, {"x": x})
    await apply([below])
    return below


@python_task(cache=True, isolation="process")
def spreading_apart(x: int) -> int:
    apply_sync([create_task(square, {"x": x})])
    return time.time_ns()


@python_workflow(id="squares")
def squares(xs: list[int]) -> list[int]:
    return square.map(xs)


@python_workflow(id="moments")
def moments() -> int:
    return moment()


@python_workflow(id="spread_cached")
def spread(x: int) -> Any:
    return spreading(x)


@python_workflow(id="give_cached")
def give(x: int) -> Any:
    return giving(x)


@python_workflow(id="apart_cached")
def apart(x: int) -> int:
    return spreading_apart(x)


@pytest.fixture(scope="module")
def installation(shared_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One fleet for all tests, because it starts a process for tasks that need one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("installation"))
        patch.setenv("DAGMASTER_DATABASE_URL", shared_dsn)
        patch.setenv("DAGMASTER_POLL_INTERVAL_SECONDS", "0.1")
        patch.setenv("DAGMASTER_WORKER_QUEUE", "q")
        yield shared_dsn
        LocalFleet.close_shared()


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


async def handlers_kept(dsn: str) -> set[str]:
    return {row["handler"].rpartition(":")[2] for row in await rows(dsn, CACHED)}


async def test_python_tasks_share_cached_results(installation: str) -> None:
    assert await squares.run_async([1, 2]) == [1, 4]
    assert await squares.run_async([3, 2, 1]) == [9, 4, 1]
    assert sorted(seen) == [1, 2, 3]


async def test_a_cached_task_starts_no_handler_process(installation: str) -> None:
    before = await handlers_kept(installation)
    assert await moments.run_async() == await moments.run_async()
    assert await handlers_kept(installation) - before == {"moment"}


async def test_a_task_that_adds_tasks_is_never_cached(installation: str) -> None:
    assert await spread.run_async(5) == await spread.run_async(5) == 5
    assert sorted(seen) == [5, 5, 5]  # Twice by the adding task, and once by the added one.
    assert await give.run_async(6) == await give.run_async(6) == 36
    assert await apart.run_async(7) != await apart.run_async(7)
    assert await handlers_kept(installation) <= {"square", "moment"}


def test_a_job_under_test_starts_with_an_empty_cache() -> None:
    for _ in range(2):
        assert run_workflow(squares, {"xs": [4]}).status == "completed"
    assert seen == [4, 4]
