"""A handler process: runs tasks in the main thread while a second thread communicates with the worker."""

import contextlib
import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import Any, NoReturn, TextIO

import orjson

from dagmaster import errors, tracing
from dagmaster.errors import DagmasterError, TaskOver
from dagmaster.handlers.contract import Checkpoint, HandlerContext, HandlerResult, Permanent, Progress
from dagmaster.handlers.invocation import encode_output, error_types
from dagmaster.handlers.registry import registry
from dagmaster.worker.processes.attempt import Attempt, Ending, leaves_threads
from dagmaster.worker.processes.handler_lookup import Reference, find
from dagmaster.worker.processes.process_state import ProcessState
from dagmaster.worker.processes.system import Meter, die_with_parent, flush_c, has_children, memory
from dagmaster.worker.processes.wire import Frame, pack, receive

INTERRUPT = signal.SIGUSR1
TELL_EVERY_MILLISECONDS = 100
TASKS_PER_CHILD = 100
GROWTH_BYTES = 512 * 1024 * 1024


def detach(server: int, output: int) -> None:
    """Detach the forked process from the fork server."""
    os.setsid()
    die_with_parent(signal.SIGKILL)
    if os.getppid() != server:
        os._exit(0)  # The fork server is already gone.
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__ = _stream(1), _stream(2)  # type: ignore[misc,assignment]
    faulthandler.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # As Python does for its own generator after a fork: otherwise all children would draw the same numbers.
    if (numpy := sys.modules.get("numpy.random")) is not None:
        numpy.seed()


def _stream(descriptor: int) -> TextIO:
    # Line-buffered, so that the log can be followed.
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


class Child:
    """Only the second thread uses the socket: a signal that interrupts the main thread cannot split a frame."""

    def __init__(self, sock: socket.socket, max_output_bytes: int) -> None:
        self._sock = sock
        self._max_output_bytes = max_output_bytes
        self._tasks: SimpleQueue[Frame] = SimpleQueue()
        self._frames: SimpleQueue[bytes] = SimpleQueue()
        self._wake_reader, self._wake_writer = os.pipe()
        self._ctx: HandlerContext | None = None
        self._attempt: Attempt | None = None
        self._progress: deque[tuple[str, Progress]] = deque(maxlen=1)
        self._numbers = count(1)
        self._saving: dict[int, Future[None]] = {}

    # The main thread.

    def run(self) -> NoReturn:
        state = ProcessState()
        self._take_signals()
        # A fork made by a handler is no child of the worker, and ends like any process.
        os.register_at_fork(after_in_child=_give_signals_back)
        threading.Thread(target=self._listen, name="dagmaster-control", daemon=True).start()
        memory_at_first, done = memory("VmRSS") or 0, 0
        while True:
            task = self._tasks.get()
            meter = Meter()
            ending = self._work(task)
            is_restored = state.restore()
            self._take_signals()
            usage = meter.read()
            done += 1
            grown = (memory("VmRSS") or 0) - memory_at_first
            is_clean = ending.kind != "cancelled" and is_restored and not leaves_threads() and not has_children()
            self._finish(
                ending,
                **asdict(usage),
                reusable=is_clean and done < TASKS_PER_CHILD and grown < GROWTH_BYTES,
            )

    def _take_signals(self) -> None:
        signal.signal(INTERRUPT, lambda *_: self._attempt.interrupt() if self._attempt else None)
        # Service managers signal all processes, but the worker decides. Not SIG_IGN: subprocesses would inherit it.
        signal.signal(signal.SIGTERM, lambda *_: None)

    def _work(self, task: Frame) -> Ending:
        ctx = self._ctx
        assert ctx is not None
        try:
            handler = find(Reference(**task.head["handler"]), registry)
        except Permanent as error:
            refused = HandlerResult(False, error_message=str(error), permanent=True, error_types=error_types(error))
            return Ending("ended", refused)
        self._attempt = Attempt(handler, ctx, self._max_output_bytes)
        with tracing.coming_from(task.head["trace_parent"]):
            ending = self._attempt.run()
        self._attempt = None
        return ending

    def _finish(self, ending: Ending, **more: Any) -> None:
        self._ctx = None
        self._saving.clear()
        flush_c()
        self._send_progress()
        result = ending.result
        head = {
            "kind": "outcome",
            "ending": ending.kind,
            "success": bool(result.success),
            "error_message": result.error_message,
            "permanent": bool(result.permanent),
            "retry_after_seconds": None if result.retry_after_seconds is None else float(result.retry_after_seconds),
            "error_types": [str(name) for name in result.error_types],
            "metrics": orjson.Fragment(ending.metrics),
            **more,
        }
        self._send(head, ending.output)

    def _send(self, head: dict[str, Any], body: bytes = b"") -> None:
        self._frames.put(pack(head, body))
        os.write(self._wake_writer, b"!")

    def _keep(self, task_id: str, checkpoint: Checkpoint) -> Future[None]:
        artifacts = [dict(artifact) for artifact in checkpoint.artifacts]
        label = f"the checkpoint {checkpoint.phase}"
        content = encode_output({"data": checkpoint.data, "artifacts": artifacts}, self._max_output_bytes, label)
        return self._ask(task_id, {"kind": "checkpoint", "phase": checkpoint.phase}, content)

    def _add(self, task_id: str, slices: Sequence[bytes]) -> Future[None]:
        return self._ask(task_id, {"kind": "added", "sizes": [len(part) for part in slices]}, b"".join(slices))

    def _ask(self, task_id: str, head: dict[str, Any], body: bytes) -> Future[None]:
        """Ask the worker to store something; the future completes with its answer."""
        if self._ctx is None or self._ctx.task_id != task_id:
            raise TaskOver(f"task {task_id} has ended, but a thread that it started has not")
        number, stored = next(self._numbers), Future[None]()
        self._saving[number] = stored
        self._send_progress()
        self._send({**head, "task_id": task_id, "number": number}, body)
        return stored

    # The second thread.

    def _listen(self) -> None:
        try:
            self._exchange_frames()
        except (OSError, EOFError):
            pass  # The worker is gone or has released this child.
        except Exception:  # noqa: BLE001 - without this thread, the child is lost for the worker
            traceback.print_exc()
        finally:
            os.killpg(0, signal.SIGKILL)

    def _exchange_frames(self) -> NoReturn:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._wake_reader, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(TELL_EVERY_MILLISECONDS if self._ctx else None)}
            if self._wake_reader in ready:
                os.read(self._wake_reader, 4096)
            if not ready:
                self._send_progress()
            while not self._frames.empty():
                self._sock.sendall(self._frames.get())
            if self._sock.fileno() in ready:
                self._handle(self._receive())

    def _receive(self) -> Frame:
        if (frame := receive(self._sock)) is None:
            raise EOFError
        return frame

    def _handle(self, frame: Frame) -> None:
        ctx = self._ctx
        match frame.head:
            case {"kind": "task"}:
                self._ctx = self._context(frame)
                self._sock.sendall(pack({"kind": "begun"}))
                self._tasks.put(frame)
            case {"kind": "stored", "number": number, "error": error}:
                _answer(self._saving.pop(number, None), error)
            case {"kind": "stop"} if ctx is not None:
                ctx.stopping.set()
            case {"kind": "cancel"} if ctx is not None:
                ctx.cancelled.set()
                signal.pthread_kill(threading.main_thread().ident or 0, INTERRUPT)

    def _context(self, task: Frame) -> HandlerContext:
        fields = orjson.loads(task.body)
        if (resumed := fields["resumed_from"]) is not None:
            fields["resumed_from"] = Checkpoint(resumed["phase"], resumed["data"], tuple(resumed["artifacts"]))
        task_id = fields["task_id"]
        # The sinks know their task: a thread that outlives its task must not report for the next one.
        ctx = HandlerContext(
            **fields,
            progress_sink=lambda progress: self._progress.append((task_id, progress)),
            checkpoint_sink=partial(self._keep, task_id),
            add_sink=partial(self._add, task_id),
        )
        if task.head["stopping"]:
            ctx.stopping.set()
        return ctx

    def _send_progress(self) -> None:
        with contextlib.suppress(IndexError):  # There is none, or the other thread has taken it.
            task_id, progress = self._progress.popleft()
            self._frames.put(pack({"kind": "progress", "task_id": task_id, **asdict(progress)}))


def _give_signals_back() -> None:
    for number in (INTERRUPT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _answer(stored: Future[None] | None, error: list[str] | None) -> None:
    if stored is None:
        return
    if error is None:
        stored.set_result(None)
    else:
        stored.set_exception(_rebuilt(*error))


def _rebuilt(name: str, message: str) -> Exception:
    """The worker's error as its own type, if it is one of dagmaster's."""
    kind = {"Permanent": Permanent}.get(name) or getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, DagmasterError):
        return kind(message)
    return RuntimeError(f"{name}: {message}")
