"""Databases for tests: each is lent to one test at a time, and emptied instead of dropped and created again."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from dagmaster.store.embedded import EmbeddedServer
from dagmaster.store.migrate import upgrade

TEMPLATE = "dagmaster_template"
FIRST_OID = 16384  # Of user objects.
FEW_BYTES = 256 * 1024
SECONDS_TO_END = 30.0

# Counts every change except to rows, also if rolled back, whatever else the session has disabled.
NOTICE_CHANGES = """
    CREATE SCHEMA lending;
    CREATE SEQUENCE lending.changes;
    CREATE FUNCTION lending.notice() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
        AS $$ BEGIN PERFORM nextval('lending.changes'); END $$;
    CREATE EVENT TRIGGER notice ON ddl_command_end EXECUTE FUNCTION lending.notice();
    ALTER EVENT TRIGGER notice ENABLE ALWAYS;
    SELECT setval('lending.changes', 1, false)"""
# Triggers do not see settings, limits and privileges of the database itself.
OUTSIDE = """
    SELECT to_jsonb(d) - '{oid,datname,datfrozenxid,datminmxid,datistemplate}'::text[],
           (SELECT count(*) FROM pg_db_role_setting WHERE setdatabase = d.oid)
    FROM pg_database AS d WHERE datname = %s"""
INSIDE = """
    SELECT (SELECT is_called FROM lending.changes),
           (SELECT string_agg(version_num, ' ') FROM dagapp.alembic_version),
           (SELECT md5(string_agg(p::text, ' ' ORDER BY platform_id)) FROM dagapp.platforms AS p)"""
FILLED = f"""
    SELECT oid::regclass::text, pg_relation_size(oid) > {FEW_BYTES} FROM pg_class
    WHERE oid >= {FIRST_OID} AND relkind = 'r' AND relname NOT IN ('alembic_version', 'platforms')
        AND pg_relation_size(oid) > 0"""
FORGET = f"""
    DELETE FROM pg_statistic WHERE starelid >= {FIRST_OID};
    SELECT setval(seqrelid, seqstart, false) FROM pg_sequence;
    SELECT pg_stat_reset()"""


class Databases:
    """The databases of one server. None is lent twice under the same name."""

    def __init__(self, server: EmbeddedServer, *, strategy: str) -> None:
        self._server, self._strategy = server, strategy
        self._unused: list[str] = []
        self._names = 0
        self._conn: psycopg.Connection[Any] | None = None
        self._run(f"CREATE DATABASE {TEMPLATE}")
        upgrade(server.dsn_of(TEMPLATE))
        with self._connected(TEMPLATE) as conn:
            conn.execute(NOTICE_CHANGES)
            self._inside = conn.execute(INSIDE).fetchall()
        self._outside = self._run(OUTSIDE, [TEMPLATE]).fetchall()

    @contextmanager
    def lent(self) -> Iterator[str]:
        """The URL of a database with only dagmaster's schema."""
        name = self._unused.pop() if self._unused else self._create()
        yield self._server.dsn_of(name)
        self._take_back(name)

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()

    def _create(self) -> str:
        name = self._new_name()
        self._run(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY {self._strategy}")
        return name

    def _take_back(self, name: str) -> None:
        """Terminate remaining connections, and rename the database so that they cannot reconnect to the next test's."""
        renamed = self._new_name()
        self._cut_off(name, renamed)
        is_as_made = self._run(OUTSIDE, [renamed]).fetchall() == self._outside
        if is_as_made:
            with self._connected(renamed) as conn:
                is_as_made = self._is_as_made(conn)
                if is_as_made:
                    _empty(conn)
        if is_as_made:
            self._unused.append(renamed)
        else:
            self._run(f"DROP DATABASE {renamed} WITH (FORCE)")

    def _cut_off(self, name: str, renamed: str) -> None:
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        deadline = time.monotonic() + SECONDS_TO_END
        while True:
            # Polled, because PostgreSQL itself checks only ten times a second.
            while self._run(end, [name]).fetchone() is not None:
                assert time.monotonic() < deadline, f"somebody is still at work in the database {name}"
                time.sleep(0.001)
            try:
                self._run(f"ALTER DATABASE {name} RENAME TO {renamed}")
                return
            except psycopg.errors.ObjectInUse:  # A client has reconnected in between.
                continue

    def _is_as_made(self, conn: psycopg.Connection[Any]) -> bool:
        try:
            return conn.execute(INSIDE).fetchall() == self._inside
        except psycopg.errors.UndefinedTable:
            return False

    def _new_name(self) -> str:
        self._names += 1
        return f"test_{self._names}"

    def _run(self, statement: str, values: list[Any] | None = None) -> psycopg.Cursor[Any]:
        try:
            return self._admin().execute(statement, values)
        except psycopg.OperationalError:
            if self._conn is None or not self._conn.closed:
                raise
            return self._admin().execute(statement, values)

    def _admin(self) -> psycopg.Connection[Any]:
        # A test may have restarted the server.
        if self._conn is None or self._conn.closed:
            self._conn = psycopg.connect(self._server.dsn_of("postgres"), autocommit=True)
        return self._conn

    @contextmanager
    def _connected(self, name: str) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self._server.dsn_of(name), autocommit=True) as conn:
            yield conn


def _empty(conn: psycopg.Connection[Any]) -> None:
    """As after its creation: no rows, dead rows or statistics, and all sequences start at one again."""
    filled = conn.execute(FILLED).fetchall()
    large = [name for name, is_large in filled if is_large]
    small = [name for name, is_large in filled if not is_large]
    if large:
        conn.execute(f"TRUNCATE {', '.join(large)} CASCADE")
    if small:
        # For a few rows this takes a quarter of the time of new files.
        deletions = ", ".join(f"d{number} AS (DELETE FROM {name})" for number, name in enumerate(small))
        conn.execute(f"SET session_replication_role = replica; WITH {deletions} SELECT")  # Without triggers.
        conn.execute(f"VACUUM (SKIP_DATABASE_STATS, INDEX_CLEANUP ON, TRUNCATE ON) {', '.join(small)}")
        # If an automatic ANALYZE was reading, the VACUUM had to leave rows.
        if left := conn.execute(FILLED).fetchall():
            conn.execute(f"TRUNCATE {', '.join(name for name, _ in left)} CASCADE")
    conn.execute(FORGET)
