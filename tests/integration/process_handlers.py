"""Handlers for handler processes, which change or break their process."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dagmaster import Context, HandlerResult, Permanent, Retry, handler
from dagmaster.errors import TaskOver
from dagmaster.model.added_nodes import AddedNode
from dagmaster.model.dynamic_nodes import encode_slices


class Sum(BaseModel):
    a: int
    b: int = 1


class TooOdd(ValueError):
    pass


@handler("process.nothing", isolation="process")
def nothing(ctx: Context) -> None:
    pass


@handler("process.sum", params=Sum, isolation="process")
def add(ctx: Context, params: Sum) -> dict[str, int]:
    return {"sum": params.a + params.b}


@handler("process.who", isolation="process")
def who(ctx: Context) -> dict[str, Any]:
    same = ("task_id", "job_id", "node_id", "handler", "params", "retry_count", "timeout_seconds", "worker_id")
    return {"pid": os.getpid(), **{name: getattr(ctx, name) for name in same}}


@handler("process.adds", isolation="process")
def adds(ctx: Context) -> dict[str, str]:
    """Add two nodes, in two slices."""
    nodes = [AddedNode(f"{ctx.node_id}.{number}", "echo") for number in (1, 2)]
    ctx.add(encode_slices(nodes, size=1))
    return {"$result_of": f"{ctx.node_id}.2"}


@handler("process.raise", isolation="process")
def raise_(ctx: Context) -> None:
    match ctx.params["what"]:
        case "odd":
            raise TooOdd("seven")
        case "permanent":
            raise Permanent("never")
        case "retry":
            raise Retry("later", after=7)
        case "exit":
            sys.exit(3)
        case "ctrl-c":
            raise KeyboardInterrupt
        case "generator":
            raise GeneratorExit
        case "cancelled":
            raise asyncio.CancelledError
        case "output":
            return {"it": object()}  # type: ignore[return-value]
        case "large":
            return {"it": "x" * 2_000_000}  # type: ignore[return-value]


@handler("process.result", isolation="process")
def result(ctx: Context) -> HandlerResult:
    return HandlerResult(True, {"a": 1}, metrics={"rows": 7, "where": Path("x")})


@handler("process.phases", isolation="process")
def phases(ctx: Context) -> dict[str, Any]:
    done: list[Any] = []
    for phase in ctx.remaining(["one", "two", "three"]):
        ctx.progress(len(done), 3, phase)
        ctx.checkpoint(phase, {"done": done})
        done.append(phase)
    return {"done": done, "from": ctx.resumed_from and ctx.resumed_from.data}


@handler("process.refused", isolation="process")
def refused(ctx: Context) -> dict[str, Any]:
    try:
        ctx.checkpoint("one")
    except TaskOver as error:
        return {"refused": str(error)}
    return {}


@handler("process.last_word", isolation="process")
def last_word(ctx: Context) -> None:
    for number in range(1000):
        ctx.progress(number + 1, 1000)


@handler("process.quiet_after_a_word", isolation="process")
def quiet_after_a_word(ctx: Context) -> None:
    ctx.progress(1, 2, "half")
    ctx.stopping.wait(20)


@handler("process.coroutine", isolation="process")
async def coroutine(ctx: Context) -> dict[str, Any]:
    await asyncio.sleep(0)
    await ctx.checkpoint("one", {"n": 1})
    return {"main_thread": threading.current_thread() is threading.main_thread()}


@handler("process.generator", isolation="process")
async def generator(ctx: Context) -> AsyncIterator[dict[str, Any]]:
    yield {"type": "progress", "current": 1, "total": 2}
    yield {"type": "checkpoint", "phase": "one", "data": {"n": 1}}
    yield {"type": "result", "output": {"a": 1}}


@handler("process.tidy", isolation="process")
async def tidy(ctx: Context) -> None:
    ctx.progress(1)
    try:
        await asyncio.sleep(60)
    finally:
        Path(ctx.params["path"]).write_text("tidied")


@handler("process.tidy_plainly", isolation="process")
def tidy_plainly(ctx: Context) -> None:
    ctx.progress(1)
    try:
        time.sleep(60)
    finally:
        Path(ctx.params["path"]).write_text(f"tidied, cancelled {ctx.cancelled.is_set()}")


@handler("process.sleep_in_c", isolation="process")
def sleep_in_c(ctx: Context) -> None:
    """Hold the GIL, so that no other thread and no Python signal handler runs."""
    ctypes.PyDLL(None).system(b"echo asleep; sleep 60")


@handler("process.busy", isolation="process")
def busy(ctx: Context) -> None:
    """Catch every exception and continue."""
    ctx.progress(1)
    while True:
        try:
            while True:
                pass
        except BaseException:  # noqa: BLE001 - it is to be hard to stop
            continue


@handler("process.with_subprocess", isolation="process")
def with_subprocess(ctx: Context) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with subprocess.Popen(["sleep", "60"]) as sleeping:
        ctx.progress(sleeping.pid)


@handler("process.leaves_subprocess", isolation="process")
def leaves_subprocess(ctx: Context) -> dict[str, int]:
    return {"pid": os.getpid(), "left": subprocess.Popen(["sleep", "60"]).pid}


@handler("process.reports_late", isolation="process")
def reports_late(ctx: Context) -> dict[str, int]:
    """Leave a thread that goes on with this task while its process works on the next one."""

    def report() -> None:
        time.sleep(0.3)
        ctx.progress(1)
        ctx.checkpoint("late")

    threading.Thread(target=report, daemon=True).start()
    return {"pid": os.getpid()}


@handler("process.nap", isolation="process")
def nap(ctx: Context) -> dict[str, int]:
    time.sleep(1)
    return {"pid": os.getpid()}


@handler("process.leaves_thread", isolation="process")
def leaves_thread(ctx: Context) -> dict[str, int]:
    threading.Thread(target=time.sleep, args=(60,)).start()
    return {"pid": os.getpid()}


@handler("process.die", isolation="process")
def die(ctx: Context) -> None:
    match ctx.params["how"]:
        case "exit":
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "kill":
            print("last words", flush=True)  # noqa: T201
            os.kill(os.getpid(), signal.SIGKILL)
        case "close":
            os.closerange(3, 256)
            time.sleep(60)


@handler("process.wait", isolation="process")
def wait(ctx: Context) -> None:
    ctx.progress(os.getpid())
    ctx.stopping.wait(60)


@handler("process.wait_for_stop", isolation="process")
def wait_for_stop(ctx: Context) -> None:
    ctx.progress(1)
    ctx.stopping.wait(20)
    ctx.checkpoint("as far as it got", {"n": 1})
    raise AssertionError("it went on")


@handler("process.allocate", isolation="process", memory_mb=100)
def allocate(ctx: Context) -> dict[str, int]:
    memory = bytearray(ctx.params["mb"] * 1024 * 1024)
    return {"pid": os.getpid(), "length": len(memory)}


@handler("process.compute", isolation="process")
def compute(ctx: Context) -> None:
    memory = b"x" * (ctx.params["mb"] * 1024 * 1024)
    until = time.process_time() + ctx.params["seconds"]
    while time.process_time() < until:
        pass
    del memory


hoard: list[bytes] = []


@handler("process.hoard", isolation="process")
def keep(ctx: Context) -> dict[str, int]:
    hoard.append(b"x" * (600 * 1024 * 1024))
    return {"pid": os.getpid()}


@handler("process.print", isolation="process")
def print_(ctx: Context) -> None:
    print("printed")  # noqa: T201
    print("complained", file=sys.stderr)  # noqa: T201
    ctx.logger.warning("logged")
    os.write(1, b"from C\n")
    ctypes.CDLL(None).printf(b"with printf\n")
    subprocess.run(["echo", "of a subprocess"], check=True)
    print("no newline", end="")  # noqa: T201


@handler("process.print_much", isolation="process")
def print_much(ctx: Context) -> None:
    line = b"x" * 99 + b"\n"
    block = line * 10_000
    for _ in range(ctx.params["mb"]):
        os.write(1, block)


@handler("process.make_a_mess", isolation="process")
def make_a_mess(ctx: Context) -> dict[str, Any]:
    state = {"cwd": str(Path.cwd()), "mess": os.environ.get("MESS"), "home": os.environ.get("HOME"), "pid": os.getpid()}
    os.environ["MESS"] = "1"
    os.environ.pop("HOME", None)
    state["umask"] = os.umask(0o077)
    os.chdir("/")
    sys.stdout = None
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    return state


@handler("process.stdin", isolation="process")
def stdin(ctx: Context) -> dict[str, str]:
    return {"read": sys.stdin.read()}


@handler("process.uncle", isolation="process")
def uncle(ctx: Context) -> None:
    """Stop a forked process as multiprocessing does."""
    born, telling = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(telling, b"!")
        time.sleep(60)
        os._exit(0)
    os.read(born, 1)
    os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM


def unregistered(ctx: Context) -> dict[str, str]:
    return {"it": "was imported"}
