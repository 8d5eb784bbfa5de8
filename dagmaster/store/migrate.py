"""Migrate the database's schema to the version of this program, or back."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from dagmaster.errors import Invalid, NotFound
from dagmaster.store.columns import SCHEMA
from dagmaster.store.connect import unreachable
from dagmaster.store.schema import MIGRATIONS

# Processes that start together must not migrate at the same time.
LOCK_KEY = 5_714_236_190_417_731


@dataclass(frozen=True)
class Revision:
    revision: str
    title: str
    is_current: bool


def upgrade(dsn: str, revision: str = "head") -> None:
    with _locked(dsn) as connection:
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        connection.commit()
        _run(connection, lambda config: command.upgrade(config, revision))


def downgrade(dsn: str, revision: str) -> None:
    """Raises NotFound if there is no schema."""
    with _locked(dsn) as connection:
        if _current(connection) is None:
            raise NotFound("the database has no dagmaster tables, so there is nothing to downgrade")
        _run(connection, lambda config: command.downgrade(config, revision))


def current(dsn: str) -> str | None:
    with _connect(dsn) as connection:
        return _current(connection)


def history(dsn: str) -> list[Revision]:
    """Oldest first."""
    at = current(dsn)
    scripts = list(_scripts().walk_revisions())
    return [Revision(script.revision, script.doc, script.revision == at) for script in reversed(scripts)]


def head() -> str:
    newest = _scripts().get_current_head()
    assert newest is not None
    return newest


def _current(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table_schema": SCHEMA})
    return context.get_current_revision()


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


def _run(connection: Connection, action: Callable[[Config], None]) -> None:
    config = _config()
    config.attributes["connection"] = connection
    try:
        action(config)
    except CommandError as error:
        raise Invalid(f"{error}; `dagmaster migrate history` lists the revisions") from error
    connection.commit()


@contextmanager
def _locked(dsn: str) -> Iterator[Connection]:
    with _connect(dsn) as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": LOCK_KEY})
        connection.commit()
        yield connection


@contextmanager
def _connect(dsn: str) -> Iterator[Connection]:
    engine = create_engine("postgresql+psycopg://", poolclass=NullPool, creator=lambda: psycopg.connect(dsn))
    try:
        with engine.connect() as connection:
            yield connection
    except (OperationalError, psycopg.OperationalError) as error:
        raise unreachable(error) from error
    finally:
        engine.dispose()
