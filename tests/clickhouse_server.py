"""Real ClickHouse servers of this machine: the engine of an npm package with a few lines of C around it."""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

PACKAGE = "@chdb/lib-linux-x64-gnu@26.7.3-stable.1"
CLUSTER = "shards"
DOWNLOAD_SECONDS = 180
SOURCE = """
extern int chdb_query_cmdline(int argc, char **argv);
int main(int argc, char **argv) { return chdb_query_cmdline(argc, argv); }
"""
FOREVER = "SELECT sleepEachRow(3) FROM system.numbers SETTINGS max_block_size = 1 FORMAT Null"
SHARD = "<shard><replica><host>127.0.0.1</host><port>{port}</port></replica></shard>"


class Unavailable(Exception):
    """Why there are no servers here."""


def find_program() -> Path:
    """The server; it is downloaded and compiled once for this user. Raises Unavailable with the reason."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dagmaster-tests" / "clickhouse-26.7.3"
    program = home / "clickhouse"
    for tool in ("npm", "cc"):
        if shutil.which(tool) is None:
            raise Unavailable(f"{tool} is not installed")
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _build(home, program)
    return program


def _build(home: Path, program: Path) -> None:
    try:
        command = ["npm", "pack", "--silent", "--pack-destination", str(home), PACKAGE]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, cwd=home)
    except (subprocess.SubprocessError, OSError) as error:
        raise Unavailable(f"the npm package {PACKAGE} cannot be had: {error}") from error
    [archive] = home.glob("*.tgz")
    with tarfile.open(archive) as files:
        files.extract("package/libchdb.so", home, filter="data")
    archive.unlink()
    source = home / "clickhouse.c"
    source.write_text(SOURCE)
    library = home / "package"
    unfinished = home / "clickhouse.part"
    compiler = ["cc", str(source), "-o", str(unfinished), f"-L{library}", "-lchdb", f"-Wl,-rpath,{library}"]
    subprocess.run(compiler, check=True, capture_output=True)
    unfinished.replace(program)


@contextmanager
def run_servers(folder: Path, count: int) -> Iterator[Sequence[str]]:
    """The addresses `127.0.0.1:port` of their HTTP interfaces. Together they are the cluster CLUSTER."""
    program = find_program()
    ports = _free_ports(2 * count)
    config = folder / "config.xml"
    shards = "".join(SHARD.format(port=port) for port in ports[count:])
    config.write_text(
        f"<clickhouse><remote_servers><{CLUSTER}>{shards}</{CLUSTER}></remote_servers></clickhouse>", encoding="utf-8"
    )
    with ExitStack() as stack:
        for number, (http, tcp) in enumerate(zip(ports[:count], ports[count:], strict=True)):
            stack.enter_context(_running(program, folder / str(number), config, http, tcp))
        yield [f"127.0.0.1:{port}" for port in ports[:count]]


class _Server:
    """A process that is started again when it aborts, as a supervisor would.

    This build of the engine does so now and then on a busy machine, after a query that failed on two shards: it says
    "shutting down due to a fatal error", and core dumps end in abort, called by a thread of the library. Whoever talks
    to a cluster must stand it anyway.
    """

    def __init__(self, command: Sequence[str], folder: Path, ports: Sequence[int]) -> None:
        self._command, self._folder, self._ports = command, folder, ports
        self._is_stopping = threading.Event()
        self._process = self._start()
        self._watch = threading.Thread(target=self._restart_after_aborts, daemon=True)

    def _start(self) -> "subprocess.Popen[bytes]":
        with (self._folder / "server.log").open("ab") as log:
            return subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait_until_it_listens(self) -> None:
        for port in self._ports:
            _wait(self._process, port, self._folder)
        self._watch.start()

    def _restart_after_aborts(self) -> None:
        while self._process.wait() == -signal.SIGABRT and not self._is_stopping.is_set():
            self._process = self._start()

    def stop(self) -> int | None:
        """How it ended by itself, or None."""
        ended = self._process.poll()
        self._is_stopping.set()
        self._process.kill()
        if self._watch.ident is not None:
            self._watch.join()
        self._process.kill()  # Perhaps another one: it was started again at the same moment.
        self._process.wait()
        return None if ended == -signal.SIGABRT else ended


@contextmanager
def _running(program: Path, folder: Path, config: Path, http: int, tcp: int) -> Iterator[None]:
    folder.mkdir()
    command = [str(program), "--config-file", str(config), "--path", str(folder), "--listen_host", "127.0.0.1"]
    command += ["--http_port", str(http), "--tcp_port", str(tcp)]
    command += ["--query", f"SYSTEM START LISTEN HTTP; SYSTEM START LISTEN TCP; {FOREVER}"]
    running = _Server(command, folder, (http, tcp))
    try:
        running.wait_until_it_listens()
        yield
    finally:
        ended = running.stop()
    assert ended is None, f"ClickHouse died ({ended}): {log_of(folder)}"


def log_of(folder: Path) -> str:
    return (folder / "server.log").read_text(errors="replace")[-2000:]


def _wait(process: "subprocess.Popen[bytes]", port: int, folder: Path) -> None:
    while True:
        assert process.poll() is None, f"ClickHouse did not start: {log_of(folder)}"
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                return
        except OSError:
            time.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for free in sockets:
            free.bind(("127.0.0.1", 0))
        return [int(free.getsockname()[1]) for free in sockets]
