"""Real ClickHouse servers of this machine: the engine of an npm package with a few lines of C around it."""

import fcntl
import os
import shutil
import socket
import subprocess
import tarfile
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


@contextmanager
def _running(program: Path, folder: Path, config: Path, http: int, tcp: int) -> Iterator[None]:
    folder.mkdir()
    command = [str(program), "--config-file", str(config), "--path", str(folder), "--listen_host", "127.0.0.1"]
    command += ["--http_port", str(http), "--tcp_port", str(tcp)]
    command += ["--query", f"SYSTEM START LISTEN HTTP; SYSTEM START LISTEN TCP; {FOREVER}"]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait(process, http, folder)
        _wait(process, tcp, folder)
        yield
        assert process.poll() is None, f"ClickHouse died ({process.returncode}): {log_of(folder)}"
    finally:
        process.kill()
        process.wait()


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
