"""The fork server: has loaded the handlers, has no threads, and forks handler processes until its worker ends."""

import faulthandler
import gc
import os
import selectors
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import Any, NoReturn

from dagmaster.errors import DagmasterError
from dagmaster.handlers.contract import Permanent
from dagmaster.handlers.loader import load_handlers
from dagmaster.handlers.registry import registry
from dagmaster.logs import set_up_logs
from dagmaster.worker.processes.child import Child, detach
from dagmaster.worker.processes.handler_lookup import Reference, find
from dagmaster.worker.processes.system import RUSAGE_UNIT, die_with_parent, kill_group
from dagmaster.worker.processes.wire import FORK, REQUEST, pack, receive

BROKEN_EXIT = 70


class ForkServer:
    """Forks, kills and reaps children, and reports to the worker."""

    def __init__(self, sock: socket.socket, max_output_bytes: int) -> None:
        self._sock = sock
        self._max_output_bytes = max_output_bytes
        self._worker = os.getppid()
        self._children: set[int] = set()
        self._bell, self._rings = socket.socketpair()
        for end in (self._bell, self._rings):
            end.setblocking(False)

    def run(self) -> None:
        """Serve until the worker is gone."""
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _only_wake)
        signal.set_wakeup_fd(self._rings.fileno(), warn_on_full_buffer=False)
        die_with_parent(signal.SIGTERM)  # besides the closed socket, which a fork of the worker might hold open
        with selectors.DefaultSelector() as selector:
            selector.register(self._sock, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            while os.getppid() == self._worker:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._bell in ready:
                    self._reap()
                if self._sock in ready and not self._handle_request(selector):
                    break
        self._end()

    def _handle_request(self, selector: selectors.BaseSelector) -> bool:
        """False when the worker is gone."""
        try:
            request, descriptors, _, _ = socket.recv_fds(self._sock, REQUEST.size, 2)
        except ConnectionError:
            return False
        if len(request) < REQUEST.size:
            return False
        kind, pid = REQUEST.unpack(request)
        if kind == FORK:
            self._fork(selector, *descriptors)
        elif pid in self._children:  # Not reaped yet, so the pid is still its own.
            _kill(pid)
        return True

    def _fork(self, selector: selectors.BaseSelector, control: int, output: int) -> None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self.send(kind="unable", reason=f"cannot fork a process: {error.strerror}")
        else:
            if pid == 0:
                selector.close()
                self._become_child(server, control, output)
            self._children.add(pid)
            self.send(kind="forked", pid=pid)
        os.close(control)
        os.close(output)

    def _become_child(self, server: int, control: int, output: int) -> NoReturn:
        """Become the child. Never returns."""
        try:
            signal.set_wakeup_fd(-1)
            for end in (self._sock, self._bell, self._rings):
                end.close()
            detach(server, output)
            Child(socket.socket(fileno=control), self._max_output_bytes).run()
        except BaseException:  # noqa: BLE001 - a child that continued would be a second fork server
            traceback.print_exc()
        finally:
            os._exit(BROKEN_EXIT)

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            while self._bell.recv(4096):
                pass
        for pid in list(self._children):
            ended, status, usage = os.wait4(pid, os.WNOHANG)
            if ended:
                kill_group(pid)  # Subprocesses that it left behind.
                self._children.discard(pid)
                self.send(
                    kind="ended",
                    pid=pid,
                    status=status,
                    peak_memory_bytes=usage.ru_maxrss * RUSAGE_UNIT,
                    cpu_seconds=usage.ru_utime + usage.ru_stime,
                )

    def send(self, **head: Any) -> None:
        with suppress(OSError):  # The worker is gone, as the next read from the socket shows.
            self._sock.sendall(pack(head))

    def _end(self) -> None:
        for pid in self._children:
            _kill(pid)
        for pid in list(self._children):
            os.waitpid(pid, 0)


def _only_wake(*_: object) -> None:
    """Ignore signals: service managers send them to all processes, while the worker still finishes its tasks."""


def _kill(pid: int) -> None:
    """Kill the process group, or the process alone if it has no group of its own yet."""
    kill_group(pid)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _prepare(config: dict[str, Any]) -> None:
    """Load the handlers of the worker, from the same paths."""
    sys.path[:] = config["path"]
    if config["python_path"] is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = config["python_path"]
    set_up_logs(config["log_level"], "text")
    load_handlers(config["specs"])
    for reference in config["handlers"]:
        with suppress(Permanent):  # Its tasks fail with the reason.
            find(Reference(**reference), registry)
    # Freeze what is loaded: children share its memory as long as the collector does not touch it.
    gc.collect()
    gc.freeze()


def main() -> None:
    faulthandler.enable()
    die_with_parent(signal.SIGKILL)  # Loading may take long, and the socket is not read meanwhile.
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    if (config := receive(sock)) is None:
        return
    server = ForkServer(sock, config.head["max_output_bytes"])
    try:
        _prepare(config.head)
    except DagmasterError as error:
        server.send(kind="broken", reason=str(error))
        return
    server.send(kind="ready")
    server.run()


if __name__ == "__main__":
    main()
