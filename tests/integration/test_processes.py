"""Handlers in processes of their own, and all that can become of those."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from concurrent.futures import Future
from pathlib import Path
from time import monotonic

import orjson
import process_handlers  # noqa: F401 - a module sees the handlers that it imports
import psutil
import pytest
import pytest_asyncio
from process_tasks import (
    KILL_AFTER,
    MB,
    PARENT,
    PATIENCE,
    Task,
    error,
    is_alive,
    make,
    output,
    run,
    started,
    until,
    until_gone,
)

from dagmaster.errors import TaskOver
from dagmaster.handlers import Checkpoint
from dagmaster.worker.processes.children import Children

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared() -> AsyncIterator[Children]:
    """Most tests need no fork server of their own."""
    async with started() as children:
        yield children


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def patient() -> AsyncIterator[Children]:
    """Kills nobody who is only slow."""
    async with started(kill_after_seconds=PATIENCE) as children:
        yield children


@pytest_asyncio.fixture(loop_scope="module")
async def own() -> AsyncIterator[Children]:
    async with started() as children:
        yield children


# What goes in and what comes out.


async def test_a_handler_gets_its_params_and_its_output_comes_back(shared: Children) -> None:
    assert await output(shared, "process.sum", a=2) == {"sum": 3}


async def test_params_are_validated_there(shared: Children) -> None:
    outcome = await run(shared, "process.sum", a="x")
    assert outcome.result.permanent and error(outcome).startswith("invalid params: a:")


async def test_the_context_is_that_of_the_task(shared: Children) -> None:
    task = Task(shared, "process.who", params={"x": 1}, retry_count=3, timeout_seconds=5.0, worker_id="w")
    fields = orjson.loads((await task.running).output or b"")
    assert fields.pop("pid") != os.getpid()
    assert fields == {name: getattr(task.ctx, name) for name in fields}


@pytest.mark.parametrize(
    ("failure", "message", "permanent", "after", "first_type"),
    [
        ("odd", "TooOdd: seven", False, None, "TooOdd"),
        ("permanent", "never", True, None, "Permanent"),
        ("retry", "later", False, 7, "Retry"),
        ("exit", "SystemExit: 3", False, None, "SystemExit"),
        ("ctrl-c", "KeyboardInterrupt", False, None, "KeyboardInterrupt"),
        ("generator", "GeneratorExit", False, None, "GeneratorExit"),
        ("cancelled", "CancelledError", False, None, "CancelledError"),
        ("output", "cannot store output.it: a object is not JSON", True, None, "Permanent"),
        ("large", "the output has 2,000,009 bytes; the limit is 1,000,000", True, None, "TooLong"),
    ],
)
async def test_what_it_raises_is_known_by_its_types(
    shared: Children, failure: str, message: str, permanent: bool, after: float | None, first_type: str
) -> None:
    outcome = await run(shared, "process.raise", what=failure)
    assert error(outcome).startswith(message)
    assert (outcome.result.permanent, outcome.result.retry_after_seconds) == (permanent, after)
    assert outcome.result.error_types[0] == first_type


async def test_a_traceback_is_in_the_log_of_the_task(shared: Children) -> None:
    task = Task(shared, "process.raise", params={"what": "odd"})
    await task.running
    assert b"process_handlers.py" in task.log and b"TooOdd: seven" in task.log and b"task_id=7_work_0" in task.log


async def test_metrics_come_along(shared: Children) -> None:
    outcome = await run(shared, "process.result")
    assert (outcome.output, outcome.result.metrics) == (b'{"a":1}', {"rows": 7, "where": "x"})


async def test_a_coroutine_runs_there_too(shared: Children) -> None:
    task = Task(shared, "process.coroutine")
    assert (await task.running).output == b'{"main_thread":true}'
    assert task.saved == [Checkpoint("one", {"n": 1}, ())]


async def test_what_a_generator_yields_is_passed_on(shared: Children) -> None:
    task = Task(shared, "process.generator")
    assert (await task.running).output == b'{"a":1}'
    assert await task.progress() == 1 and task.saved == [Checkpoint("one", {"n": 1}, ())]


async def test_eight_run_at_once(own: Children) -> None:
    tasks = [Task(own, "process.wait", task_id=f"7_work_{number}") for number in range(8)]
    pids = {await task.progress() for task in tasks}
    assert len(pids) == 8 and set(own.pids.values()) == pids
    own.stop_gently()
    outcomes = await asyncio.gather(*(task.running for task in tasks))
    assert all(outcome.result.success for outcome in outcomes) and not own.pids


# Progress and checkpoints.


async def test_a_checkpoint_is_stored_before_the_handler_goes_on(shared: Children) -> None:
    reached: asyncio.Queue[tuple[str, Future[None]]] = asyncio.Queue()

    def keep(checkpoint: Checkpoint) -> Future[None]:
        stored: Future[None] = Future()
        reached.put_nowait((checkpoint.phase, stored))
        return stored

    task = Task(shared, "process.phases", checkpoint_sink=keep)
    for phase in ("one", "two", "three"):
        current, stored = await reached.get()
        assert current == phase and not task.running.done()
        stored.set_result(None)
    assert (await task.running).output == b'{"done":["one","two","three"],"from":null}'
    assert task.ctx.last_checkpoint == Checkpoint("three", {"done": ["one", "two"]}, ())


async def test_it_goes_on_where_an_earlier_attempt_was(shared: Children) -> None:
    task = Task(shared, "process.phases", resumed_from=Checkpoint("two", {"n": 1}))
    assert (await task.running).output == b'{"done":["three"],"from":{"n":1}}'


async def test_a_refused_checkpoint_is_an_error_in_the_handler(shared: Children) -> None:
    def refuse(checkpoint: Checkpoint) -> Future[None]:
        stored: Future[None] = Future()
        stored.set_exception(TaskOver("another one has begun"))
        return stored

    assert (await Task(shared, "process.refused", checkpoint_sink=refuse).running).output == (
        b'{"refused":"another one has begun"}'
    )


async def test_an_error_of_the_one_who_keeps_checkpoints_is_the_handlers(shared: Children) -> None:
    def fail(checkpoint: Checkpoint) -> Future[None]:
        raise OSError("no disk")

    outcome = await Task(shared, "process.refused", checkpoint_sink=fail).running
    assert error(outcome) == "RuntimeError: OSError: no disk"


async def test_much_progress_is_told_now_and_then_and_the_last_always(shared: Children) -> None:
    task = Task(shared, "process.last_word")
    await task.running
    progress = [task.updates.get_nowait() for _ in range(task.updates.qsize())]
    assert progress[-1].current == 1000 and len(progress) < 100


async def test_progress_is_told_while_the_handler_is_silent(own: Children) -> None:
    task = Task(own, "process.quiet_after_a_word")
    assert await task.progress() == 1 and not task.running.done()
    own.stop_gently()
    await task.running


# Stopping.


async def test_a_stopping_worker_interrupts_it_at_its_checkpoint(own: Children) -> None:
    task = Task(own, "process.wait_for_stop")
    await task.progress()
    own.stop_gently()
    outcome = await task.running
    assert outcome.interrupted and not outcome.result.success
    assert [checkpoint.phase for checkpoint in task.saved] == ["as far as it got"]
    late = Task(own, "process.phases")
    assert (await late.running).interrupted and [checkpoint.phase for checkpoint in late.saved] == ["one"]


async def stopped(children: Children, task: Task) -> float:
    """Cancel it, see that it is gone, and say how long that took."""
    pid = children.pids["7_work_0"]
    begun = monotonic()
    task.running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task.running
    took = monotonic() - begun
    assert not is_alive(pid) and "7_work_0" not in children.pids
    return took


@pytest.mark.parametrize("handler", ["process.tidy", "process.tidy_plainly"])
async def test_a_cancelled_handler_may_tidy_up(patient: Children, tmp_path: Path, handler: str) -> None:
    task = Task(patient, handler, params={"path": str(tmp_path / "it")})
    await task.progress()
    assert await stopped(patient, task) < PATIENCE
    assert (tmp_path / "it").read_text().startswith("tidied")


async def test_one_that_catches_everything_is_killed(shared: Children) -> None:
    task = Task(shared, "process.busy")
    await task.progress()
    assert KILL_AFTER <= await stopped(shared, task) < KILL_AFTER + PATIENCE


async def test_one_that_is_stuck_in_c_is_killed(shared: Children) -> None:
    task = Task(shared, "process.sleep_in_c")
    await until(lambda: b"asleep" in task.log)
    assert KILL_AFTER <= await stopped(shared, task) < KILL_AFTER + PATIENCE


async def test_what_it_started_is_killed_with_it(shared: Children) -> None:
    task = Task(shared, "process.with_subprocess")
    subprocess_pid = int(await task.progress())
    assert is_alive(subprocess_pid)
    assert await stopped(shared, task) < KILL_AFTER + PATIENCE
    await until_gone(subprocess_pid)


async def test_a_timeout_stops_it_even_if_cancelled_again(shared: Children) -> None:
    task = Task(shared, "process.busy")
    await task.progress()
    pid = shared.pids["7_work_0"]
    for _ in range(3):
        task.running.cancel()
        await asyncio.sleep(0.05)
    with pytest.raises(asyncio.CancelledError):
        await task.running
    assert not is_alive(pid)


async def test_cancelled_before_it_began_it_leaves_nothing(own: Children) -> None:
    task = Task(own, "process.busy")
    await asyncio.sleep(0)
    task.running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task.running
    assert not own.pids
    assert await output(own, "process.sum", a=1) == {"sum": 2}


async def test_a_service_managers_signal_to_all_ends_no_handler(own: Children) -> None:
    task = Task(own, "process.wait")
    pid = int(await task.progress())
    os.kill(pid, signal.SIGTERM)
    os.kill(psutil.Process(pid).ppid(), signal.SIGTERM)
    assert await output(own, "process.sum", a=1) == {"sum": 2}
    own.stop_gently()
    assert (await task.running).result.success


async def test_a_process_that_a_handler_forks_can_be_terminated(shared: Children) -> None:
    assert (await run(shared, "process.uncle")).result.success


# Processes that die.


@pytest.mark.parametrize(
    ("how", "message"),
    [("exit", "the handler process ended with exit code 3"), ("segfault", "crashed with SIGSEGV")],
)
async def test_a_death_is_told_with_its_cause(shared: Children, how: str, message: str) -> None:
    outcome = await run(shared, "process.die", how=how)
    assert message in error(outcome)
    assert not outcome.result.permanent and outcome.result.error_types == ("ProcessDied", "Exception")
    assert outcome.usage is not None and outcome.usage.peak_memory_bytes
    assert await output(shared, "process.sum", a=1) == {"sum": 2}


async def test_a_crash_leaves_a_traceback(shared: Children) -> None:
    task = Task(shared, "process.die", params={"how": "segfault"})
    await task.running
    assert b"Segmentation fault" in task.log and b"process_handlers.py" in task.log


async def test_a_killed_one_is_reported_and_what_it_had_printed_is_kept(shared: Children) -> None:
    task = Task(shared, "process.die", params={"how": "kill"})
    assert "was killed" in error(await task.running)
    assert task.log == b"last words\n"


async def test_one_that_cuts_its_connection_is_ended(shared: Children) -> None:
    task = Task(shared, "process.die", params={"how": "close"})
    await asyncio.sleep(0)
    assert "handler process" in error(await task.running)


async def test_a_dead_idle_child_is_not_used(own: Children) -> None:
    pid = (await output(own, "process.who"))["pid"]
    os.kill(pid, signal.SIGKILL)
    await until_gone(pid)
    assert (await output(own, "process.who"))["pid"] != pid


async def test_more_memory_than_allowed_is_a_memory_error(shared: Children) -> None:
    outcome = await run(shared, "process.allocate", mb=300)
    assert error(outcome) == "MemoryError" and outcome.result.error_types == ("MemoryError", "Exception")
    assert (await output(shared, "process.allocate", mb=50))["length"] == 50 * MB


async def test_without_a_fork_server_tasks_fail_and_the_next_has_a_new_one(own: Children) -> None:
    task = Task(own, "process.with_subprocess")
    subprocess_pid = int(await task.progress())
    pid = own.pids["7_work_0"]
    os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)
    outcome = await task.running
    assert "fork server ended" in error(outcome) and not outcome.result.permanent
    await until_gone(pid, subprocess_pid)
    assert await output(own, "process.sum", a=1) == {"sum": 2}


async def test_nothing_outlives_a_killed_worker() -> None:
    with subprocess.Popen([sys.executable, PARENT], stdout=subprocess.PIPE, text=True) as parent:  # noqa: ASYNC220
        assert parent.stdout is not None
        child, sleeping = map(int, (await asyncio.to_thread(parent.stdout.readline)).split())
        server = psutil.Process(child).ppid()
        assert psutil.Process(server).ppid() == parent.pid
        parent.kill()
    await until_gone(child, sleeping, server)


async def test_nothing_is_left_when_it_is_closed() -> None:
    children = make()
    task = Task(children, "process.with_subprocess")
    pids = [int(await task.progress()), children.pids["7_work_0"]]
    pids.append(psutil.Process(pids[1]).ppid())
    await children.close()
    assert "ended" in error(await task.running)
    await until_gone(*pids)


# What they print.


async def test_all_that_is_printed_is_captured_however_it_is_printed(shared: Children) -> None:
    task = Task(shared, "process.print")
    await task.running
    lines = bytes(task.log).decode().splitlines()
    assert {"printed", "complained", "from C", "with printf", "of a subprocess", "no newline"} <= {*lines}
    assert any("logged" in line for line in lines)


async def test_much_output_holds_up_nobody(shared: Children) -> None:
    printing = Task(shared, "process.print_much", params={"mb": 200})
    turns = 0
    while not printing.running.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert (await printing.running).result.success
    # Counted in turns, not in seconds: how long one takes says how busy the machine is.
    assert len(printing.log) == 200_000_000 and turns >= 20


async def test_there_is_nothing_to_read_on_stdin(shared: Children) -> None:
    assert await output(shared, "process.stdin") == {"read": ""}
