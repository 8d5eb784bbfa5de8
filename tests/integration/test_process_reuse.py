"""Handler processes are reused and know the handlers of their worker."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import process_handlers
import psutil
import pytest
import pytest_asyncio
from process_tasks import MB, Task, error, is_alive, make, output, run, started, until, until_gone

from dagmaster.handlers import Handler, HandlerContext, Registry, load_handlers, registry
from dagmaster.worker.processes.children import Children

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared() -> AsyncIterator[Children]:
    """Most tests can share a fork server."""
    async with started() as children:
        yield children


@pytest_asyncio.fixture(loop_scope="module")
async def own() -> AsyncIterator[Children]:
    async with started() as children:
        yield children


async def test_a_handler_process_is_reused(own: Children) -> None:
    assert len({(await output(own, "process.who"))["pid"] for _ in range(5)}) == 1


async def test_a_process_is_replaced_after_many_tasks(own: Children) -> None:
    pids = [(await output(own, "process.who"))["pid"] for _ in range(101)]
    assert len(set(pids)) == 2 and pids[99] != pids[100]


async def test_process_state_changed_by_a_handler_is_restored(own: Children) -> None:
    first = await output(own, "process.make_a_mess")
    assert first["mess"] is None and first["cwd"] == str(Path.cwd())
    assert await output(own, "process.make_a_mess") == first
    task = Task(own, "process.print")
    await task.running
    assert b"printed\n" in task.log


@pytest.mark.parametrize("handler", ["process.leaves_thread", "process.leaves_subprocess"])
async def test_a_process_with_leftover_threads_or_children_is_replaced(shared: Children, handler: str) -> None:
    pids = await output(shared, handler)
    await until_gone(*pids.values())
    assert (await output(shared, "process.who"))["pid"] != pids["pid"]


async def test_a_leftover_thread_reports_nothing_for_the_next_task(own: Children) -> None:
    first = await output(own, "process.reports_late")
    task = Task(own, "process.nap", task_id="8_next_0")
    assert orjson.loads((await task.running).output or b"") == first
    assert task.saved == [] and task.updates.empty()


async def test_a_process_that_does_not_release_memory_is_replaced(own: Children) -> None:
    first = await output(own, "process.hoard")
    assert await output(own, "process.hoard") != first
    await until_gone(first["pid"])


async def test_the_number_of_idle_processes_is_limited(own: Children) -> None:
    tasks = [Task(own, "process.wait", task_id=f"7_work_{number}") for number in range(8)]
    pids = [int(await task.progress()) for task in tasks]
    own.stop_gently()
    await asyncio.gather(*(task.running for task in tasks))
    await until(lambda: sum(map(is_alive, pids)) <= 4)
    assert sum(map(is_alive, pids)) == 4


async def test_memory_and_cpu_time_are_measured_per_attempt(own: Children) -> None:
    large = (await run(own, "process.compute", mb=200, seconds=0.3)).usage
    small = (await run(own, "process.compute", mb=1, seconds=0)).usage
    assert large is not None and large.peak_memory_bytes and large.cpu_seconds
    assert small is not None and small.peak_memory_bytes and small.cpu_seconds is not None
    assert large.peak_memory_bytes > 200 * MB > small.peak_memory_bytes
    assert large.cpu_seconds > 0.25 and small.cpu_seconds < large.cpu_seconds


# Loading handlers.


async def test_an_unregistered_function_is_imported(shared: Children) -> None:
    handler = Handler("otherwise", process_handlers.unregistered, isolation="process")
    assert await output(shared, handler) == {"it": "was imported"}


async def test_a_handler_known_only_to_this_process_fails_with_advice(shared: Children) -> None:
    def closure(ctx: HandlerContext) -> None: ...

    outcome = await run(shared, Handler("closure", closure, isolation="process"))
    assert outcome.result.permanent and "--handlers" in error(outcome) and "'closure'" in error(outcome)


async def test_a_given_file_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "given.py"
    path.write_text(
        "from dagmaster import handler\n\n@handler('process.given', isolation='process')\ndef given(ctx):\n"
        "    return {'a': 1}\n"
    )
    known = Registry()
    load_handlers([str(path)], known)
    children = Children(known, [str(path)], max_output_bytes=1000)
    assert await output(children, known.get("process.given")) == {"a": 1}
    await children.close()


async def test_handlers_that_cannot_be_loaded_fail_their_tasks_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("raise OSError('no licence')")
    children = Children(registry, [str(path)], max_output_bytes=1000)
    await children.start()
    for _ in range(2):
        outcome = await run(children, "process.sum", a=1)
        assert "no licence" in error(outcome) and not outcome.result.permanent
    path.write_text("from dagmaster.handlers import basic")
    assert await output(children, "process.sum", a=1) == {"sum": 2}
    await children.close()


async def test_without_process_handlers_no_fork_server_is_started() -> None:
    children = make(Registry())
    before = psutil.Process().children()
    await children.start()
    assert set(psutil.Process().children()) <= set(before)  # Some may just have ended.
    await children.close()
