"""Real ClickHouse servers of this machine, where `make clickhouse` could install their engine with npm."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

LIBRARY = Path(sys.prefix) / "clickhouse" / "node_modules" / "@chdb" / "lib-linux-x64-gnu"
CLUSTER = "shards"
# The engine is that of clickhouse-local: an error that leaves the thread of a connection aborts it; a server logs it.
# Reading from a reset connection is such an error, and a host resets its connections to others when a query fails. Here
# a connection that was reset is at its end.
SOURCE = """
#include <errno.h>
#include <sys/socket.h>
extern int chdb_query_cmdline(int argc, char **argv);
int main(int argc, char **argv) { return chdb_query_cmdline(argc, argv); }
ssize_t recv(int socket, void *buffer, size_t length, int flags)
{
    ssize_t received = recvfrom(socket, buffer, length, flags, 0, 0);
    return received < 0 && errno == ECONNRESET ? 0 : received;
}
"""
FOREVER = "SELECT sleepEachRow(3) FROM system.numbers SETTINGS max_block_size = 1 FORMAT Null"
CONFIG = f"""<clickhouse>
<listen_reuse_port>1</listen_reuse_port>
<remote_servers><{CLUSTER}>{{shards}}</{CLUSTER}></remote_servers>
</clickhouse>"""
SHARD = "<shard><replica><host>127.0.0.1</host><port>{port}</port></replica></shard>"


def why_not() -> str | None:
    """Why there are no servers here, or None."""
    if not (LIBRARY / "libchdb.so").exists():
        return "needs the engine of ClickHouse, which needs npm: make clickhouse"
    return None if shutil.which("cc") else "needs a C compiler for the servers of ClickHouse"


@contextmanager
def run_servers(folder: Path, count: int) -> Iterator[Sequence[str]]:
    """The addresses `127.0.0.1:port` of their HTTP interfaces. Together they are the cluster CLUSTER."""
    program = _build(folder)
    with ExitStack() as stack:
        ports = [stack.enter_context(_reserved_port()) for _ in range(2 * count)]
        config = folder / "config.xml"
        config.write_text(CONFIG.format(shards="".join(SHARD.format(port=port) for port in ports[count:])))
        for number, (http, tcp) in enumerate(zip(ports[:count], ports[count:], strict=True)):
            stack.enter_context(_running(program, folder / str(number), config, http, tcp))
        yield [f"127.0.0.1:{port}" for port in ports[:count]]


def _build(folder: Path) -> Path:
    source, program = folder / "clickhouse.c", folder / "clickhouse"
    source.write_text(SOURCE)
    command = ["cc", str(source), "-o", str(program), "-rdynamic", f"-L{LIBRARY}", "-lchdb", f"-Wl,-rpath,{LIBRARY}"]
    subprocess.run(command, check=True)
    return program


@contextmanager
def _running(program: Path, folder: Path, config: Path, http: int, tcp: int) -> Iterator[None]:
    folder.mkdir()
    command = [str(program), "--config-file", str(config), "--path", str(folder), "--listen_host", "127.0.0.1"]
    command += ["--http_port", str(http), "--tcp_port", str(tcp)]
    command += ["--query", f"SYSTEM START LISTEN HTTP; SYSTEM START LISTEN TCP; {FOREVER}"]
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        for port in (http, tcp):
            _wait(process, port, folder)
        yield
        assert process.poll() is None, f"ClickHouse ended with {process.poll()}: {_last_words(folder)}"
    finally:
        process.kill()
        process.wait()


def _last_words(folder: Path) -> str:
    return (folder / "server.log").read_text(errors="replace")[-2000:]


def _wait(process: "subprocess.Popen[bytes]", port: int, folder: Path) -> None:
    while True:
        assert process.poll() is None, f"ClickHouse did not start: {_last_words(folder)}"
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                return
        except OSError:
            time.sleep(0.05)


@contextmanager
def _reserved_port() -> Iterator[int]:
    """Nobody gets it before the server, which may share it."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        yield int(reserved.getsockname()[1])
