"""A PostGIS server for tests and benchmarks, from Debian's package: the embedded server has no PostGIS."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from dagmaster.store.migrate import upgrade

PACKAGE = "postgresql-15-postgis-3"
PROGRAMS = Path("/usr/lib/postgresql/15/bin")
IS_INSTALLED = (PROGRAMS / "initdb").is_file() and Path("/usr/share/postgresql/15/extension/postgis.control").is_file()
REASON = f"PostGIS is not installed; on Debian: apt-get install {PACKAGE}"
TEMPLATE = "postgis_template"
# Tests crash the server, never the machine.
OPTIONS = {"fsync": "off", "full_page_writes": "off", "jit": "off", "listen_addresses": "127.0.0.1"}


@dataclass
class PostgisServer:
    port: int
    databases: int = 0

    def dsn_of(self, name: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{name}"

    def create_database(self) -> str:
        """A database with PostGIS and dagmaster's schema."""
        self.databases += 1
        name = f"test_{self.databases}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        return self.dsn_of(name)

    def run(self, statement: str, database: str = "postgres") -> None:
        with psycopg.connect(self.dsn_of(database), autocommit=True) as conn:
            conn.execute(statement)


@contextmanager
def run_postgis() -> Iterator[PostgisServer]:
    # Not in pytest's temporary folder, which other users cannot read.
    folder = Path(tempfile.mkdtemp(prefix="dagmaster-postgis-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        data = folder / "data"
        _run("initdb", "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--no-locale", "-D", str(data))
        options = " ".join(f"-c {name}={value}" for name, value in OPTIONS.items())
        _run(
            "pg_ctl",
            "-w",
            "-D",
            str(data),
            "-l",
            str(folder / "log"),
            "-o",
            f"-p {port} -k {folder} {options}",
            "start",
        )
        try:
            server = PostgisServer(port)
            server.run(f"CREATE DATABASE {TEMPLATE}")
            server.run("CREATE EXTENSION postgis", TEMPLATE)
            upgrade(server.dsn_of(TEMPLATE))
            yield server
        finally:
            _run("pg_ctl", "-w", "-D", str(data), "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


def _run(program: str, *arguments: str) -> None:
    """PostgreSQL refuses to run as root."""
    prefix = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    command = [*prefix, str(PROGRAMS / program), *arguments]
    none = subprocess.DEVNULL
    done = subprocess.run(command, check=False, stdin=none, stdout=none, stderr=subprocess.PIPE, cwd="/")
    assert done.returncode == 0, done.stderr.decode()
