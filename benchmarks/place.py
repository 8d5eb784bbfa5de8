"""Where the benchmarks run: one embedded server in a folder of its own, a fresh database for each measurement."""

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from dagmaster.store import migrate
from dagmaster.store.embedded import EmbeddedServer

TEMPLATE = "bench_template"


@dataclass(slots=True)
class Place:
    server: EmbeddedServer
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @contextmanager
    def database(self, purpose: str) -> Iterator[str]:
        """The address of a fresh database with dagmaster's schema."""
        name = f"bench_{purpose}_{next(self._numbers)}"
        self._administer(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY WAL_LOG")
        try:
            yield self.server.dsn_of(name)
        finally:
            self._administer(f"DROP DATABASE {name} WITH (FORCE)")

    def prepare(self) -> None:
        self._administer(f"CREATE DATABASE {TEMPLATE}")
        migrate.upgrade(self.server.dsn_of(TEMPLATE))

    def describe(self) -> str:
        with psycopg.connect(self.server.dsn_of("postgres")) as conn:
            [version] = conn.execute("SHOW server_version").fetchone() or ("?",)
            settings = [(name, conn.execute(f"SHOW {name}").fetchone()) for name in ("fsync", "synchronous_commit")]
        return f"PostgreSQL {version}, " + ", ".join(f"{name} {value[0]}" for name, value in settings if value)

    def _administer(self, statement: str) -> None:
        with psycopg.connect(self.server.dsn_of("postgres"), autocommit=True) as conn:
            conn.execute(statement.encode())


@contextmanager
def embedded_place(parent: Path | None) -> Iterator[Place]:
    """On the disk of `parent`: a folder in memory would make every commit free."""
    folder = Path(tempfile.mkdtemp(prefix="dagmaster-bench-", dir=parent))
    try:
        with EmbeddedServer.start(folder) as server:
            place = Place(server)
            place.prepare()
            yield place
    finally:
        shutil.rmtree(folder, ignore_errors=True)
