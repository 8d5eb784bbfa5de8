"""Handler processes: values, progress, stopping, deaths and output."""

import asyncio
import os
import signal
import socket
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
from dagmaster.worker.processes.forkserver_client import MODULE
from dagmaster.worker.processes.wire import pack

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared() -> AsyncIterator[Children]:
    """Most tests can share a fork server."""
    async with started() as children:
        yield children


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def patient() -> AsyncIterator[Children]:
    """Limits that a slow machine does not exceed."""
    async with started(kill_after_seconds=PATIENCE) as children:
        yield children


@pytest_asyncio.fixture(loop_scope="module")
async def own() -> AsyncIterator[Children]:
    async with started() as children:
        yield children


# Input and output.


async def test_a_handler_gets_its_params_and_returns_its_output(shared: Children) -> None:
    assert await output(shared, "process.sum", a=2) == {"sum": 3}


async def test_params_are_validated_in_the_process(shared: Children) -> None:
    outcome = await run(shared, "process.sum", a="x")
    assert outcome.result.permanent and error(outcome).startswith("invalid params: a:")


async def test_the_context_describes_the_task(shared: Children) -> None:
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
async def test_exceptions_keep_their_types(
    shared: Children, failure: str, message: str, permanent: bool, after: float | None, first_type: str
) -> None:
    outcome = await run(shared, "process.raise", what=failure)
    assert error(outcome).startswith(message)
    assert (outcome.result.permanent, outcome.result.retry_after_seconds) == (permanent, after)
    assert outcome.result.error_types[0] == first_type


async def test_a_traceback_is_in_the_tasks_log(shared: Children) -> None:
    task = Task(shared, "process.raise", params={"what": "odd"})
    await task.running
    assert b"process_handlers.py" in task.log and b"TooOdd: seven" in task.log and b"task_id=7_work_0" in task.log


async def test_metrics_are_returned_with_the_output(shared: Children) -> None:
    outcome = await run(shared, "process.result")
    assert (outcome.output, outcome.result.metrics) == (b'{"a":1}', {"rows": 7, "where": "x"})


async def test_a_coroutine_handler_runs_in_a_process(shared: Children) -> None:
    task = Task(shared, "process.coroutine")
    assert (await task.running).output == b'{"main_thread":true}'
    assert task.saved == [Checkpoint("one", {"n": 1}, ())]


async def test_values_yielded_by_a_generator_are_passed_on(shared: Children) -> None:
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


async def test_a_checkpoint_is_stored_before_the_handler_continues(shared: Children) -> None:
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


async def test_a_handler_resumes_from_an_earlier_attempts_checkpoint(shared: Children) -> None:
    task = Task(shared, "process.phases", resumed_from=Checkpoint("two", {"n": 1}))
    assert (await task.running).output == b'{"done":["three"],"from":{"n":1}}'


async def test_a_refused_checkpoint_raises_in_the_handler(shared: Children) -> None:
    def refuse(checkpoint: Checkpoint) -> Future[None]:
        stored: Future[None] = Future()
        stored.set_exception(TaskOver("another one has begun"))
        return stored

    assert (await Task(shared, "process.refused", checkpoint_sink=refuse).running).output == (
        b'{"refused":"another one has begun"}'
    )


async def test_an_error_of_the_checkpoint_sink_raises_in_the_handler(shared: Children) -> None:
    def fail(checkpoint: Checkpoint) -> Future[None]:
        raise OSError("no disk")

    outcome = await Task(shared, "process.refused", checkpoint_sink=fail).running
    assert error(outcome) == "RuntimeError: OSError: no disk"


async def test_frequent_progress_is_throttled_and_the_last_value_is_sent(shared: Children) -> None:
    task = Task(shared, "process.last_word")
    await task.running
    progress = [task.updates.get_nowait() for _ in range(task.updates.qsize())]
    assert progress[-1].current == 1000 and len(progress) < 100


async def test_progress_is_sent_while_the_handler_is_busy(own: Children) -> None:
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
    """Cancel it, check that its process is gone, and return how long that took."""
    pid = children.pids["7_work_0"]
    begun = monotonic()
    task.running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task.running
    took = monotonic() - begun
    assert not is_alive(pid) and "7_work_0" not in children.pids
    return took


@pytest.mark.parametrize("handler", ["process.tidy", "process.tidy_plainly"])
async def test_a_cancelled_handler_can_clean_up(patient: Children, tmp_path: Path, handler: str) -> None:
    task = Task(patient, handler, params={"path": str(tmp_path / "it")})
    await task.progress()
    assert await stopped(patient, task) < PATIENCE
    assert (tmp_path / "it").read_text().startswith("tidied")


async def test_a_handler_that_catches_everything_is_killed(shared: Children) -> None:
    task = Task(shared, "process.busy")
    await task.progress()
    assert KILL_AFTER <= await stopped(shared, task) < KILL_AFTER + PATIENCE


async def test_a_handler_blocked_in_c_is_killed(shared: Children) -> None:
    task = Task(shared, "process.sleep_in_c")
    await until(lambda: b"asleep" in task.log)
    assert KILL_AFTER <= await stopped(shared, task) < KILL_AFTER + PATIENCE


async def test_child_processes_are_killed_with_their_handler(shared: Children) -> None:
    task = Task(shared, "process.with_subprocess")
    subprocess_pid = int(await task.progress())
    assert is_alive(subprocess_pid)
    assert await stopped(shared, task) < KILL_AFTER + PATIENCE
    await until_gone(subprocess_pid)


async def test_a_repeatedly_cancelled_handler_is_still_killed(shared: Children) -> None:
    task = Task(shared, "process.busy")
    await task.progress()
    pid = shared.pids["7_work_0"]
    for _ in range(3):
        task.running.cancel()
        await asyncio.sleep(0.05)
    with pytest.raises(asyncio.CancelledError):
        await task.running
    assert not is_alive(pid)


async def test_a_task_cancelled_before_it_starts_leaves_nothing(own: Children) -> None:
    task = Task(own, "process.busy")
    await asyncio.sleep(0)
    task.running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task.running
    assert not own.pids
    assert await output(own, "process.sum", a=1) == {"sum": 2}


async def test_a_signal_to_the_whole_process_group_ends_no_handler(own: Children) -> None:
    task = Task(own, "process.wait")
    pid = int(await task.progress())
    os.kill(pid, signal.SIGTERM)
    os.kill(psutil.Process(pid).ppid(), signal.SIGTERM)
    assert await output(own, "process.sum", a=1) == {"sum": 2}
    own.stop_gently()
    assert (await task.running).result.success


async def test_a_process_that_a_handler_forks_can_be_terminated(shared: Children) -> None:
    assert (await run(shared, "process.uncle")).result.success


# Deaths of processes.


@pytest.mark.parametrize(
    ("how", "message"),
    [("exit", "the handler process ended with exit code 3"), ("segfault", "crashed with SIGSEGV")],
)
async def test_a_process_death_is_reported_with_its_cause(shared: Children, how: str, message: str) -> None:
    outcome = await run(shared, "process.die", how=how)
    assert message in error(outcome)
    assert not outcome.result.permanent and outcome.result.error_types == ("ProcessDied", "Exception")
    assert outcome.usage is not None and outcome.usage.peak_memory_bytes
    assert await output(shared, "process.sum", a=1) == {"sum": 2}


async def test_a_crash_leaves_a_traceback(shared: Children) -> None:
    task = Task(shared, "process.die", params={"how": "segfault"})
    await task.running
    assert b"Segmentation fault" in task.log and b"process_handlers.py" in task.log


async def test_a_killed_process_is_reported_and_its_output_is_kept(shared: Children) -> None:
    task = Task(shared, "process.die", params={"how": "kill"})
    assert "was killed" in error(await task.running)
    assert task.log == b"last words\n"


async def test_a_handler_that_closes_its_connection_is_ended(shared: Children) -> None:
    task = Task(shared, "process.die", params={"how": "close"})
    await asyncio.sleep(0)
    assert "handler process" in error(await task.running)


async def test_a_dead_idle_process_is_not_used(own: Children) -> None:
    pid = (await output(own, "process.who"))["pid"]
    os.kill(pid, signal.SIGKILL)
    await until_gone(pid)
    assert (await output(own, "process.who"))["pid"] != pid


async def test_exceeding_the_memory_limit_raises_memory_error(shared: Children) -> None:
    outcome = await run(shared, "process.allocate", mb=300)
    assert error(outcome) == "MemoryError" and outcome.result.error_types == ("MemoryError", "Exception")
    assert (await output(shared, "process.allocate", mb=50))["length"] == 50 * MB


async def test_without_a_fork_server_tasks_fail_and_the_next_starts_a_new_one(own: Children) -> None:
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


async def fork_server(theirs: socket.socket, worker: int) -> asyncio.subprocess.Process:
    start = f"from {MODULE} import main; main({theirs.fileno()}, {worker})"
    with theirs:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-c", start, pass_fds=[theirs.fileno()], stderr=asyncio.subprocess.PIPE
        )


def config(specs: list[str]) -> bytes:
    return pack({"specs": specs, "handlers": [], "log_level": "INFO", "max_output_bytes": 1000})


@pytest.mark.parametrize("specs", [[], ["missing.py"]])
async def test_a_fork_server_whose_client_is_gone_ends_quietly(specs: list[str]) -> None:
    ours, theirs = socket.socketpair()
    server = await fork_server(theirs, os.getpid())
    with ours:
        ours.sendall(config(specs))
    _, printed = await server.communicate()
    assert (server.returncode, printed) == (0, b"")


async def test_a_fork_server_whose_worker_died_before_it_started_ends() -> None:
    """Even if a fork of the worker still holds the socket open."""
    ours, theirs = socket.socketpair()
    with ours:
        server = await fork_server(theirs, worker=os.getppid())
        ours.sendall(config([]))
        _, printed = await server.communicate()
    assert (server.returncode, printed) == (0, b"")


async def test_close_leaves_no_processes() -> None:
    children = make()
    task = Task(children, "process.with_subprocess")
    pids = [int(await task.progress()), children.pids["7_work_0"]]
    pids.append(psutil.Process(pids[1]).ppid())
    await children.close()
    assert "ended" in error(await task.running)
    await until_gone(*pids)


# Output.


async def test_output_is_captured_however_it_is_printed(shared: Children) -> None:
    task = Task(shared, "process.print")
    await task.running
    lines = bytes(task.log).decode().splitlines()
    assert {"printed", "complained", "from C", "with printf", "of a subprocess", "no newline"} <= {*lines}
    assert any("logged" in line for line in lines)


async def test_large_output_does_not_block_other_tasks(shared: Children) -> None:
    printing = Task(shared, "process.print_much", params={"mb": 200})
    turns = 0
    while not printing.running.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert (await printing.running).result.success
    # Counted in loop iterations: seconds would measure how busy the machine is.
    assert len(printing.log) == 200_000_000 and turns >= 20


async def test_stdin_is_empty(shared: Children) -> None:
    assert await output(shared, "process.stdin") == {"read": ""}
