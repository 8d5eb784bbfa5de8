"""Tests reuse databases without seeing each other's data."""

from typing import Any

import psycopg
import pytest
from databases import Databases

from dagmaster.store.embedded import EmbeddedServer

ROW = "INSERT INTO dagapp.dag_mailbox (job_id, kind, data) VALUES (1, 'cancel', '{}') RETURNING mail_id"
ROWS = "SELECT count(*) FROM dagapp.dag_mailbox"


def ask(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        cursor = conn.execute(statement)
        return cursor.fetchall() if cursor.description else []


def oid(dsn: str) -> int:
    [(identity,)] = ask(dsn, "SELECT oid FROM pg_database WHERE datname = current_database()")
    return identity


def test_a_used_database_is_lent_again_in_its_original_state(databases: Databases) -> None:
    with databases.lent() as first:
        first_oid = oid(first)
        assert ask(first, ROW) == [(1,)]
        ask(first, "ANALYZE dagapp.dag_mailbox")
    with databases.lent() as second:
        assert oid(second) == first_oid
        assert ask(second, ROWS) == [(0,)]
        assert ask(second, ROW) == [(1,)]
        assert ask(second, "SELECT count(*) FROM pg_stats WHERE schemaname = 'dagapp'") == [(0,)]


def test_no_pages_of_many_rows_remain(databases: Databases) -> None:
    many = ROW.replace(
        "VALUES (1, 'cancel', '{}') RETURNING mail_id", "SELECT n, 'cancel', '{}' FROM generate_series(1, 9999) n"
    )
    with databases.lent() as first:
        ask(first, many)
    with databases.lent() as second:
        assert ask(second, "SELECT pg_relation_size('dagapp.dag_mailbox')") == [(0,)]


def test_open_connections_are_terminated_and_cannot_reconnect(databases: Databases) -> None:
    with databases.lent() as first:
        left_behind = psycopg.connect(first)
        left_behind.execute(ROW)
    with databases.lent() as second:
        with pytest.raises(psycopg.OperationalError):
            left_behind.execute(ROW)
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            psycopg.connect(first)
        assert ask(second, ROWS) == [(0,)]
    left_behind.close()


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE dagapp.another (n int)",
        "ALTER TABLE dagapp.dag_jobs ADD COLUMN another int",
        "ALTER TABLE dagapp.dag_jobs ALTER COLUMN workflow_id DROP NOT NULL",
        "ALTER TABLE dagapp.dag_jobs DISABLE TRIGGER touch",
        "ALTER TABLE dagapp.dag_jobs SET (fillfactor = 60)",
        "ALTER TABLE dagapp.dag_job_events DETACH PARTITION dagapp.dag_job_events_default",
        "DROP INDEX dagapp.ix_dag_jobs_live",
        "CREATE OR REPLACE FUNCTION dagapp.as_jsonb(value json) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb'",
        "ALTER TYPE dagapp.job_status ADD VALUE 'another'",
        "UPDATE dagapp.alembic_version SET version_num = '9999'",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET work_mem = ''1MB''', current_database()); END $$",
        "DROP SCHEMA dagapp CASCADE",
    ],
)
def test_a_database_with_a_changed_schema_is_not_lent_again(databases: Databases, change: str) -> None:
    with databases.lent() as first:
        changed = oid(first)
        ask(first, change)
    with databases.lent() as second:
        assert oid(second) != changed


def test_databases_are_lent_again_after_a_server_crash(databases: Databases, pg_server: EmbeddedServer) -> None:
    with databases.lent() as first:
        ask(first, ROW)
        pg_server.restart(immediate=True)
    with databases.lent() as second:
        assert ask(second, ROWS) == [(0,)]
