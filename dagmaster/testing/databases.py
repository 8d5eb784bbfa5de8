"""Databases for tests: one embedded server, a fresh database for each test from a template."""

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import psycopg

from dagmaster.store.embedded import EmbeddedServer
from dagmaster.store.migrate import upgrade

TEMPLATE = "dagmaster_template"
# Tests may crash the server but not the machine, and they spend most of their time creating databases.
QUICK = ("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")


class Databases:
    """A server in a temporary folder. Use it as a context manager."""

    def __init__(self) -> None:
        # Not in pytest's temporary folder, which other users cannot read: for root, the server runs as another user.
        self._folder = Path(tempfile.mkdtemp(prefix="dagmaster-testing-"))
        self.server = EmbeddedServer.start(self._folder)
        self._numbers = itertools.count(1)
        for statement in QUICK:
            self._administer(statement)
        self._administer(f"CREATE DATABASE {TEMPLATE}")
        upgrade(self.server.dsn_of(TEMPLATE))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.server.release()
        shutil.rmtree(self._folder, ignore_errors=True)

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """The DSN of a new database with empty dagmaster tables, dropped at the end."""
        name = f"test_{next(self._numbers)}"
        # WAL_LOG takes half the time of FILE_COPY: it needs no checkpoints.
        self._administer(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY WAL_LOG")
        try:
            yield self.server.dsn_of(name)
        finally:
            self._administer(f"DROP DATABASE {name} WITH (FORCE)")

    def _administer(self, statement: str) -> None:
        with psycopg.connect(self.server.dsn_of("postgres"), autocommit=True) as conn:
            conn.execute(statement)
