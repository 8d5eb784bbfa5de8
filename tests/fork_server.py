"""A fork server for command lines: dagmaster is loaded once, and each command is a fork of that process.

A real start loads a thousand modules, which takes longer than most commands. A fork has its own session, arguments,
folder, environment, standard files and signals, and no thread, connection or loop of anybody; it ends as a real process
does, and its pid can be signalled. What it does not have is a command line and an environment of its own in /proc.
`REAL_PROCESSES=1` runs all tests with real processes.
"""

import atexit
import functools
import gc
import importlib
import io
import marshal
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from fork_client import HEAD, PID, Connection

from dagmaster.model.optional_handlers import OPTIONAL_HANDLERS

IS_REAL = bool(os.environ.get("REAL_PROCESSES"))
PROGRAMS = Path(sys.executable).parent
NAMES = ("dagmaster", "python")
STOP_SECONDS = 10.0
# Without modules that start threads, such as pyarrow and obstore.
LOADED = ("client", "python", "web", "handlers", "worker", "store", "authoring")
# Modules that workers load only on request, and those that load ClickHouse.
NOT_LOADED = {
    "dagmaster.python.data_context",
    "dagmaster.python.table_operators",
    *(module for module, _ in OPTIONAL_HANDLERS.values()),
}
LIBRARIES = ("httpx", "rich.live", "typer.rich_utils", "uvicorn.protocols.http.httptools_impl")


class ForkServer:
    """The server as seen by tests. It ends with them."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dagmaster-fork-"))
        self.folder.chmod(0o755)
        self.address = str(self.folder / "socket")
        self._process = subprocess.Popen(
            [sys.executable, __file__, self.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "the fork server did not start"
        self.programs = self.folder / "bin"
        self._write_programs()

    def _write_programs(self) -> None:
        """Programs to be put into the PATH before the real ones."""
        self.programs.mkdir()
        for name in NAMES:
            text = (
                f"#!{sys.executable} -IS\nimport sys\nsys.path.append({str(Path(__file__).parent)!r})\n"
                f"import fork_client\nfork_client.run({self.address!r}, {name!r})\n"
            )
            (self.programs / name).write_text(text)
            (self.programs / name).chmod(0o755)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:  # Another process holds the other end of its stdin.
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        subprocess.run(["rm", "-rf", self.folder], check=True)


@functools.cache
def fork_server() -> ForkServer:
    """One for all tests of this process."""
    server = ForkServer()
    atexit.register(server.close)
    return server


class Forked:
    """A process of the fork server, with the interface of `subprocess.Popen`. It leads a session."""

    def __init__(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str], stdout: io.IOBase, stderr: io.IOBase
    ) -> None:
        variables = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
        with Path(os.devnull).open("rb") as stdin:
            files = (stdin.fileno(), stdout.fileno(), stderr.fileno())
            self._connection = Connection(fork_server().address, list(command), str(folder), variables, files)
        self.args, self.pid = command, self._connection.pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._connection.socket, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
            self.returncode = self._connection.receive()
            self._connection.socket.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(OSError):  # It has just ended.
                self._connection.send_signal(number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


# The server itself


class Request(NamedTuple):
    command: list[str]
    folder: str
    environment: dict[bytes, bytes]
    files: list[int]


class Child(NamedTuple):
    pid: int
    connection: socket.socket


class Server:
    def __init__(self, address: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(0, selectors.EVENT_READ, self._end)  # Closed when the tests are over.
        self._children: dict[int, Child] = {}

    def serve(self) -> Request:
        """Returns only in a child, with its command."""
        while True:
            for key, _ in self._selector.select():
                request: Request | None = key.data()
                if request is not None:
                    return request

    def _accept(self) -> Request | None:
        connection, _ = self._listener.accept()
        request = _receive(connection)
        if request is None:
            connection.close()
            return None
        pid = os.fork()
        if pid == 0:
            self._leave(connection)
            return request
        for file in request.files:
            os.close(file)
        ended = os.pidfd_open(pid)
        self._children[ended] = Child(pid, connection)
        self._selector.register(ended, selectors.EVENT_READ, functools.partial(self._reap, ended))
        self._selector.register(connection, selectors.EVENT_READ, functools.partial(self._signal, ended))
        _send(connection, pid)
        return None

    def _signal(self, ended: int) -> None:
        child = self._children.get(ended)
        if child is None:  # It was reaped in the same iteration.
            return
        with suppress(ConnectionError):
            numbers = child.connection.recv(64)
            if not numbers:
                self._selector.unregister(child.connection)
            for number in numbers or [signal.SIGKILL]:
                os.kill(child.pid, number)

    def _reap(self, ended: int) -> None:
        child = self._children.pop(ended)
        _, status = os.waitpid(child.pid, 0)
        self._selector.unregister(ended)
        os.close(ended)
        if child.connection in self._selector.get_map():
            self._selector.unregister(child.connection)
        _send(child.connection, os.waitstatus_to_exitcode(status))
        child.connection.close()

    def _leave(self, connection: socket.socket) -> None:
        """Close everything that belongs to the server and to other children."""
        self._selector.close()
        self._listener.close()
        connection.close()
        for ended, child in self._children.items():
            os.close(ended)
            child.connection.close()
        self._children.clear()

    def _end(self) -> NoReturn:
        for child in self._children.values():
            os.kill(child.pid, signal.SIGKILL)
        os._exit(0)


def _receive(connection: socket.socket) -> Request | None:
    """None if the client was killed while it sent its request."""
    head, files, _, _ = socket.recv_fds(connection, HEAD.size, 3)
    with connection.makefile("rb") as stream:
        length = HEAD.unpack(head)[0] if len(head) == HEAD.size else 0
        text = stream.read(length)
    if not length or len(text) < length:
        for file in files:
            os.close(file)
        return None
    command, folder, environment = marshal.loads(text)
    return Request(command, folder, environment, files)


def _send(connection: socket.socket, number: int) -> None:
    with suppress(OSError):  # The client no longer waits for it.
        connection.sendall(PID.pack(number))


def load() -> None:
    for package in LOADED:
        module = importlib.import_module(f"dagmaster.{package}")
        for submodule in pkgutil.iter_modules(getattr(module, "__path__", ()), f"dagmaster.{package}."):
            if submodule.name not in NOT_LOADED:
                importlib.import_module(submodule.name)
    for outline in importlib.import_module("dagmaster.cli.app").COMMANDS.values():
        importlib.import_module(f"dagmaster.cli.{outline.module}")
    for library in LIBRARIES:
        importlib.import_module(library)


def become(request: Request) -> None:
    """Put this process into the state of a real one at its first line."""
    os.setsid()
    for target, file in enumerate(request.files):
        os.dup2(file, target)
        os.close(file)
    os.chdir(request.folder)
    os.environb.clear()
    os.environb.update(request.environment)
    time.tzset()
    sys.stdin = sys.__stdin__ = _renew(sys.stdin, 0)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _renew(sys.stdout, 1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _renew(sys.stderr, 2)  # type: ignore[misc]


def _renew(stream: Any, file: int) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        open(file, "wb" if file else "rb", closefd=False),
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n" if file else None,
        line_buffering=file == 2 or os.isatty(file),
    )


def run(program: str, *arguments: str) -> None:
    """Run the command as the interpreter does."""
    module = sys.modules["__main__"] = ModuleType("__main__")
    if Path(program).name != "python":
        arguments = (str(PROGRAMS / Path(program).name), *arguments)
    sys.argv = [arguments[0], *arguments[2:]] if arguments[0] in ("-c", "-m") else list(arguments)
    match arguments:
        case ("-c", code, *_):
            sys.path.insert(0, "")
            exec(compile(code, "<string>", "exec"), vars(module))
        case ("-m", "dagmaster", *_):
            sys.path.insert(0, str(Path.cwd()))
            runpy._run_module_as_main("dagmaster")  # type: ignore[attr-defined]
        case (script, *_) if not script.startswith("-"):
            sys.path.insert(0, str(Path(script).resolve().parent))
            module.__file__ = script
            exec(compile(Path(script).read_bytes(), script, "exec"), vars(module))
        case _:  # pytest, for one, must load everything itself.
            os.execv(sys.executable, [sys.executable, *arguments])


def call(program: Callable[[], None]) -> int:
    """Return its exit code, as the interpreter determines it."""
    try:
        program()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException as error:  # noqa: BLE001 - whatever ends a program is shown
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def end(code: int) -> NoReturn:
    """Finalize as an interpreter does, except for freeing each object, which takes longer than most commands."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def main(address: str) -> None:
    sys.path.pop(0)
    load()
    server = Server(address)
    threads = list(Path("/proc/self/task").iterdir())
    assert len(threads) == 1, "a fork of a process with threads may wait for ever"
    gc.collect()
    gc.freeze()
    os.write(1, b"ready\n")
    request = server.serve()
    become(request)
    end(call(functools.partial(run, *request.command)))


if __name__ == "__main__":
    main(sys.argv[1])
