"""The fork server: has loaded the handlers, has no threads, and forks handler processes until its worker ends."""

import faulthandler
import gc
import os
import select
import signal
import socket
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


def main(control: int, worker: int) -> None:
    """Serve the worker, a process id, on the socket `control`."""
    faulthandler.enable()
    die_with_parent(signal.SIGKILL)  # Loading may take long, and the socket is not read meanwhile.
    sock = socket.socket(fileno=control)
    sock.set_inheritable(False)
    if (config := receive(sock)) is None:
        return
    server = ForkServer(sock, config.head["max_output_bytes"])
    try:
        _load(config.head)
    except DagmasterError as error:
        server.send(kind="broken", reason=str(error))
    else:
        server.run(worker)


def _load(config: dict[str, Any]) -> None:
    """Load the handlers of the worker."""
    set_up_logs(config["log_level"], "text")
    load_handlers(config["specs"])
    for reference in config["handlers"]:
        with suppress(Permanent):  # Its tasks fail with the reason.
            find(Reference(**reference), registry)
    # Freeze what is loaded: children share its memory as long as the collector does not touch it.
    gc.collect()
    gc.freeze()


class ForkServer:
    """Forks, kills and reaps children, and reports to the worker."""

    def __init__(self, sock: socket.socket, max_output_bytes: int) -> None:
        self._sock, self._max_output_bytes = sock, max_output_bytes
        self._children: set[int] = set()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)

    def run(self, worker: int) -> None:
        """Serve until the worker is gone."""
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _only_wake)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        die_with_parent(signal.SIGTERM)  # besides the closed socket, which a fork of the worker might hold open
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._wake_reader, select.POLLIN)
        self.send(kind="ready")
        while os.getppid() == worker:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._wake_reader in ready:
                os.read(self._wake_reader, 4096)
                self._reap()
            if self._sock.fileno() in ready and not self._handle_request():
                break
        for pid in self._children:
            _kill(pid)
        for pid in self._children:
            os.waitpid(pid, 0)

    def send(self, **head: Any) -> None:
        with suppress(OSError):  # The worker is gone, as the next read from the socket shows.
            self._sock.sendall(pack(head))

    def _handle_request(self) -> bool:
        """False when the worker is gone."""
        try:
            request, descriptors, _, _ = socket.recv_fds(self._sock, REQUEST.size, 2)
        except ConnectionError:
            return False
        if len(request) < REQUEST.size:
            return False
        kind, pid = REQUEST.unpack(request)
        if kind == FORK:
            self._fork(*descriptors)
        elif pid in self._children:  # Not reaped yet, so the pid is still its own.
            _kill(pid)
        return True

    def _fork(self, control: int, output: int) -> None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self.send(kind="unable", reason=f"cannot fork a process: {error.strerror}")
        else:
            if pid == 0:
                self._become_child(server, control, output)
            self._children.add(pid)
            self.send(kind="forked", pid=pid)
        os.close(control)
        os.close(output)

    def _become_child(self, server: int, control: int, output: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            self._sock.close()
            os.close(self._wake_reader)
            os.close(self._wake_writer)
            detach(server, output)
            Child(socket.socket(fileno=control), self._max_output_bytes).run()
        except BaseException:  # noqa: BLE001 - a child that continued would be a second fork server
            traceback.print_exc()
        finally:
            os._exit(BROKEN_EXIT)

    def _reap(self) -> None:
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


def _only_wake(*_: object) -> None:
    """Ignore signals: service managers send them to all processes, while the worker still finishes its tasks."""


def _kill(pid: int) -> None:
    """Kill the process group, or the process alone if it has no group of its own yet."""
    kill_group(pid)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
