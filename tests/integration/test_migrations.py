import itertools
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Enum, create_engine
from sqlalchemy.pool import NullPool

from dagmaster.errors import DatabaseUnavailable, Invalid, SchemaMissing
from dagmaster.store import migrate, schema
from dagmaster.store.columns import SCHEMA
from dagmaster.store.connect import opened
from dagmaster.store.embedded import EmbeddedServer
from dagmaster.store.schema import check_schema
from dagmaster.store.tables import Base

numbers = itertools.count(1)

NEXT_REVISION = '''
"""A column more"""

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.execute("ALTER TABLE dagapp.dag_jobs ADD COLUMN colour text DEFAULT 'red'")


def downgrade() -> None:
    op.execute("ALTER TABLE dagapp.dag_jobs DROP COLUMN colour")
'''


@pytest.fixture
def empty(pg_server: EmbeddedServer) -> Iterator[str]:
    """The URL of a database without the schema."""
    name = f"migrations_{next(numbers)}"
    with psycopg.connect(pg_server.dsn_of("postgres"), autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} STRATEGY WAL_LOG")
        yield pg_server.dsn_of(name)
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def two_revisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later release with a second revision."""
    folder = tmp_path / "migrations"
    shutil.copytree(schema.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "0002_colour.py").write_text(NEXT_REVISION.lstrip())
    monkeypatch.setattr(migrate, "MIGRATIONS", folder)
    monkeypatch.setattr(schema, "HEAD", "0002")


def ask(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        cursor = conn.execute(query)
        return cursor.fetchall() if cursor.description else []


def objects(dsn: str) -> dict[str, list[tuple[Any, ...]]]:
    """Everything that a migration can create in the schema, by kind.

    All days of the timeline have the same name here: midnight may be between two migrations.
    """
    day = r"(dag_job_events_)\d{8}"
    return {
        "columns": ask(
            dsn,
            f"""SELECT regexp_replace(table_name, '{day}', '\\1day'), column_name, data_type, is_nullable,
                    column_default, is_identity
                FROM information_schema.columns WHERE table_schema = '{SCHEMA}' ORDER BY 1, 2""",
        ),
        "indexes": ask(
            dsn,
            f"""SELECT regexp_replace(indexname, '{day}', '\\1day'), regexp_replace(indexdef, '{day}', '\\1day', 'g')
                FROM pg_indexes WHERE schemaname = '{SCHEMA}' ORDER BY 1""",
        ),
        "functions": ask(
            dsn,
            f"""SELECT p.proname, pg_get_functiondef(p.oid) FROM pg_proc p
                WHERE p.pronamespace::regnamespace::text IN ('{SCHEMA}', 'gateway') ORDER BY 1""",
        ),
        "views": ask(dsn, "SELECT viewname, definition FROM pg_views WHERE schemaname = 'gateway' ORDER BY 1"),
        "triggers": ask(
            dsn,
            """SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger
               WHERE NOT tgisinternal ORDER BY tgrelid::regclass::text, 1""",
        ),
        "enums": ask(
            dsn,
            f"""SELECT t.typname, e.enumlabel FROM pg_type t JOIN pg_enum e ON e.enumtypid = t.oid
                WHERE t.typnamespace = '{SCHEMA}'::regnamespace ORDER BY 1, e.enumsortorder""",
        ),
        "options": ask(
            dsn,
            f"""SELECT relname, reloptions FROM pg_class
                WHERE relnamespace = '{SCHEMA}'::regnamespace AND reloptions IS NOT NULL ORDER BY 1""",
        ),
    }


def test_the_migrations_build_exactly_the_models_schema(empty: str) -> None:
    migrate.upgrade(empty)

    def include(name: str | None, kind: str, _: Any) -> bool:
        if kind == "schema":
            return name == SCHEMA
        return kind != "table" or not (name or "").startswith(("dag_job_events_", "alembic_version"))

    engine = create_engine("postgresql+psycopg://", poolclass=NullPool, creator=lambda: psycopg.connect(empty))
    with engine.connect() as connection:
        options = {
            "include_schemas": True,
            "include_name": include,
            "compare_type": True,
            "compare_server_default": True,
            "version_table_schema": SCHEMA,
        }
        differences = compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata)
    engine.dispose()
    assert differences == []


def test_every_enum_of_the_models_has_its_values_in_the_database(empty: str) -> None:
    migrate.upgrade(empty)
    labels: dict[str, list[str]] = {}
    for name, label in objects(empty)["enums"]:
        labels.setdefault(name, []).append(label)
    meant = {
        column.type.name: list(column.type.enums)
        for table in Base.metadata.tables.values()
        for column in table.columns
        if isinstance(column.type, Enum)
    }
    assert labels == meant


def test_downgrading_and_upgrading_gives_the_same_schema(empty: str) -> None:
    migrate.upgrade(empty)
    first = objects(empty)
    migrate.downgrade(empty, "base")
    assert migrate.current(empty) is None
    assert {kind: names for kind, names in objects(empty).items() if names and kind not in ("columns", "indexes")} == {}
    assert {row[0] for row in objects(empty)["columns"]} == {"alembic_version"}
    migrate.upgrade(empty)
    assert objects(empty) == first


@pytest.mark.usefixtures("two_revisions")
def test_each_migration_can_be_downgraded_and_upgraded(empty: str) -> None:
    for step in ("0001", "0002"):
        migrate.upgrade(empty, step)
        before = objects(empty)
        migrate.downgrade(empty, "-1")
        migrate.upgrade(empty, step)
        assert objects(empty) == before, step
    assert migrate.current(empty) == migrate.head() == "0002"


def test_upgrading_twice_changes_nothing(empty: str) -> None:
    migrate.upgrade(empty)
    first = objects(empty)
    migrate.upgrade(empty)
    assert objects(empty) == first


def test_three_concurrent_upgrades_give_one_schema(empty: str) -> None:
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(migrate.upgrade, empty) for _ in range(3)]:
            done.result()
    assert migrate.current(empty) == migrate.head()
    assert ask(empty, "SELECT count(*) FROM dagapp.alembic_version") == [(1,)]


@pytest.mark.usefixtures("two_revisions")
def test_history_lists_the_revisions_oldest_first_and_says_which_is_current(empty: str) -> None:
    assert migrate.current(empty) is None
    assert [entry.is_current for entry in migrate.history(empty)] == [False, False]
    migrate.upgrade(empty, "0001")
    assert [(entry.revision, entry.is_current) for entry in migrate.history(empty)] == [("0001", True), ("0002", False)]
    assert all(entry.title for entry in migrate.history(empty))
    migrate.upgrade(empty)
    assert [(entry.revision, entry.is_current) for entry in migrate.history(empty)] == [("0001", False), ("0002", True)]


@pytest.mark.usefixtures("two_revisions")
def test_a_migrated_database_keeps_its_rows(empty: str) -> None:
    migrate.upgrade(empty, "0001")
    with psycopg.connect(empty, autocommit=True) as conn:
        conn.execute("INSERT INTO dagapp.dag_workflows (workflow_hash, workflow_id, version) VALUES ('h', 'w', 1)")
        conn.execute(
            "INSERT INTO dagapp.dag_jobs (job_id, workflow_id, workflow_version, workflow_hash, status, priority) "
            "VALUES (7, 'w', 1, 'h', 'running', 0)"
        )
        for moment in ("now()", "now() - interval '400 days'", "now() + interval '400 days'"):
            conn.execute(
                "INSERT INTO dagapp.dag_job_events (job_id, event_type, event_status, source_app, created_at) "
                f"VALUES (7, 'job_created', 'info', 'test', {moment})"
            )
    migrate.upgrade(empty)
    migrate.downgrade(empty, "0001")
    migrate.upgrade(empty)
    assert ask(empty, "SELECT job_id, status::text, colour FROM dagapp.dag_jobs") == [(7, "running", "red")]
    assert ask(empty, "SELECT workflow_id FROM dagapp.dag_workflows") == [("w",)]
    assert ask(empty, "SELECT count(*) FROM dagapp.dag_job_events") == [(3,)]


def test_other_schemas_are_not_touched(empty: str) -> None:
    ask(empty, "CREATE SCHEMA app; CREATE TABLE app.mine (x int); CREATE TABLE public.yours (x int)")
    migrate.upgrade(empty)
    migrate.downgrade(empty, "base")
    assert ask(empty, "SELECT to_regclass('app.mine')::text, to_regclass('public.yours')::text") == [
        ("app.mine", "yours")
    ]


def test_an_unknown_revision_is_named(empty: str) -> None:
    with pytest.raises(Invalid, match="9999"):
        migrate.upgrade(empty, "9999")


def test_an_unreachable_database_is_reported_as_such() -> None:
    with pytest.raises(DatabaseUnavailable, match="cannot be reached"):
        migrate.current("postgresql://nobody@/nothing?host=/nowhere")


@pytest.mark.usefixtures("two_revisions")
async def test_a_missing_or_old_schema_is_refused(empty: str) -> None:
    async with opened(empty, application="test") as conn:
        with pytest.raises(SchemaMissing, match="dagmaster migrate"):
            await check_schema(conn)
        migrate.upgrade(empty, "0001")
        with pytest.raises(SchemaMissing, match="0001"):
            await check_schema(conn)
        migrate.upgrade(empty)
        await check_schema(conn)


async def test_updated_at_changes_with_every_update_of_jobs_and_nodes(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO dagapp.dag_jobs (job_id, workflow_id, workflow_version, workflow_hash, status, priority, "
            "updated_at) VALUES (1, 'w', 1, 'h', 'running', 0, '2000-01-01')"
        )
        conn.execute(
            "INSERT INTO dagapp.dag_node_states (job_id, node_id, status, updated_at) "
            "VALUES (1, 'n', 'ready', '2000-01-01')"
        )
        for table in ("dag_jobs", "dag_node_states"):
            conn.execute(f"UPDATE dagapp.{table} SET version = 5")
            fresh = conn.execute(f"SELECT now() - updated_at < interval '1 minute' FROM dagapp.{table}").fetchone()
            assert fresh == (True,)
