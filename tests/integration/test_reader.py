"""The gateway's role can read only its views: the database enforces it."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from command_line import call
from psycopg import errors
from reading import PASSWORD, as_role, dropped_after, make_reader, new_role

from dagmaster.errors import Conflict, Forbidden, Invalid
from dagmaster.store.connect import Connection, opened
from dagmaster.store.embedded import EmbeddedServer
from dagmaster.store.gateway_role import create_reader
from dagmaster.store.migrate import upgrade
from dagmaster.store.statements import SQL

ROOT = Path(__file__).parents[2]
REFUSED = (errors.InsufficientPrivilege, errors.ReadOnlySqlTransaction)
# A view of several tables cannot be written by any role.
UNWRITABLE = (*REFUSED, errors.ObjectNotInPrerequisiteState, errors.WrongObjectType)


class Reader(NamedTuple):
    owner_dsn: str
    dsn: str
    role: str


@pytest.fixture(scope="module")
def reader(shared_dsn: str) -> Iterator[Reader]:
    with dropped_after(shared_dsn, new_role()) as role:
        yield Reader(shared_dsn, asyncio.run(make_reader(shared_dsn, role)), role)


@pytest.fixture
def role(dsn: str) -> Iterator[str]:
    with dropped_after(dsn, new_role()) as name:
        yield name


def relations(dsn: str, schema: str) -> list[str]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        names = conn.execute(
            "SELECT format('%%I.%%I', nspname, relname) FROM pg_class c JOIN pg_namespace s ON s.oid = relnamespace "
            "WHERE nspname = %s AND relkind IN ('r', 'p', 'v') ORDER BY 1",
            [schema],
        ).fetchall()
    assert names
    return [name for (name,) in names]


def sessions(reader: Reader) -> Iterator[psycopg.Connection[Any]]:
    """As the role starts, and after it changed every setting that it may change."""
    for lifted in (False, True):
        with psycopg.connect(reader.dsn, autocommit=True) as conn:
            if lifted:
                conn.execute("SET default_transaction_read_only = off")
            yield conn


def assert_refused(conn: psycopg.Connection[Any], statement: str, kinds: tuple[type[Exception], ...] = REFUSED) -> None:
    with pytest.raises(kinds):
        conn.execute(statement.encode())
        pytest.fail(f"not refused: {statement}")


def first_column(owner_dsn: str, relation: str) -> str:
    with psycopg.connect(owner_dsn) as conn:
        columns = conn.execute(f"SELECT * FROM {relation} LIMIT 0".encode()).description
    assert columns
    return columns[0].name


def test_the_reader_can_read_every_view(reader: Reader) -> None:
    with psycopg.connect(reader.dsn) as conn:
        for view in relations(reader.owner_dsn, "gateway"):
            conn.execute(f"SELECT * FROM {view}".encode())


def test_the_reader_can_read_no_table(reader: Reader) -> None:
    for conn in sessions(reader):
        for table in relations(reader.owner_dsn, "dagapp"):
            assert_refused(conn, f"SELECT FROM {table}", (errors.InsufficientPrivilege,))


def test_the_reader_can_write_nothing(reader: Reader) -> None:
    everything = relations(reader.owner_dsn, "dagapp") + relations(reader.owner_dsn, "gateway")
    columns = {name: first_column(reader.owner_dsn, name) for name in everything}
    for conn in sessions(reader):
        for relation, column in columns.items():
            assert_refused(conn, f"INSERT INTO {relation} DEFAULT VALUES", UNWRITABLE)
            assert_refused(conn, f"UPDATE {relation} SET {column} = {column}", UNWRITABLE)
            assert_refused(conn, f"DELETE FROM {relation}", UNWRITABLE)
            assert_refused(conn, f"TRUNCATE {relation}", UNWRITABLE)


def test_the_reader_can_create_call_and_become_nothing(reader: Reader) -> None:
    for conn in sessions(reader):
        for statement in (
            "CREATE TEMPORARY TABLE t (x int)",
            "CREATE TABLE t (x int)",
            "CREATE TABLE public.t (x int)",
            "CREATE TABLE gateway.t (x int)",
            "CREATE VIEW gateway.v AS SELECT 1",
            "CREATE FUNCTION public.f() RETURNS int LANGUAGE sql RETURN 1",
            "CREATE SCHEMA mine",
            "CREATE DATABASE mine",
            "CREATE ROLE another",
            "SELECT dagapp.seed_platforms()",
            "SELECT pg_read_file('/etc/hostname')",
            "COPY (SELECT 1) TO PROGRAM 'true'",
            "SET ROLE postgres",
        ):
            assert_refused(conn, statement, (*REFUSED, errors.InvalidParameterValue))


def test_large_objects_are_refused_by_read_only_mode_and_by_the_documented_revoke(reader: Reader) -> None:
    create = "SELECT lo_create(0)"
    with psycopg.connect(reader.dsn, autocommit=True) as conn:
        assert_refused(conn, create, (errors.ReadOnlySqlTransaction,))
    with psycopg.connect(reader.owner_dsn) as owner:
        page = (ROOT / "docs" / "how-to" / "run-the-gateway.md").read_text()
        [revocation] = re.findall(r"^REVOKE .*$", page, re.MULTILINE)
        owner.execute(revocation.encode())
        owner.execute(f"SET LOCAL ROLE {reader.role}".encode())
        assert_refused(owner, create, (errors.InsufficientPrivilege,))
        owner.rollback()


async def test_assets_are_found_by_their_references_through_an_index(conn: Connection) -> None:
    """References of assets and of their versions."""
    await conn.execute(
        """INSERT INTO dagapp.geospatial_assets (asset_id, platform_id, platform_refs, data_type)
           SELECT n, 'ddh', jsonb_build_object('dataset_id', n::text), 'raster' FROM generate_series(1, 2000) AS n"""
    )
    await conn.execute(
        """INSERT INTO dagapp.asset_versions (asset_id, version_ordinal, platform_refs)
           SELECT asset_id, 0, platform_refs FROM dagapp.geospatial_assets"""
    )
    await conn.execute("ANALYZE dagapp.geospatial_assets, dagapp.asset_versions")
    await conn.execute("SET enable_seqscan = off")  # Small tables would otherwise be scanned.
    cursor = await conn.execute(b"EXPLAIN (GENERIC_PLAN) " + SQL["gateway_assets"].text, prepare=False)
    plan = "\n".join(row["QUERY PLAN"] for row in await cursor.fetchall())
    assert "ix_geospatial_assets_refs" in plan and "ix_asset_versions_refs" in plan, plan


def test_writing_is_refused_by_privileges_not_only_by_read_only_mode(reader: Reader) -> None:
    with psycopg.connect(reader.dsn, autocommit=True) as conn:
        assert conn.execute("SHOW default_transaction_read_only").fetchone() == ("on",)
        assert conn.execute("SHOW statement_timeout").fetchone() == ("30s",)
        conn.execute("SET default_transaction_read_only = off")
        assert_refused(conn, "UPDATE gateway.platforms SET is_active = false", (errors.InsufficientPrivilege,))
        assert_refused(conn, "INSERT INTO dagapp.dag_jobs DEFAULT VALUES", (errors.InsufficientPrivilege,))


def test_other_roles_cannot_look_up_keys(reader: Reader) -> None:
    with psycopg.connect(reader.owner_dsn) as conn:
        granted = conn.execute(
            "SELECT has_function_privilege(%s, f, 'EXECUTE'), "
            "(SELECT count(*) FROM pg_proc p, aclexplode(p.proacl) WHERE p.oid = f::regprocedure AND grantee = 0) "
            "FROM (VALUES ('gateway.find_key(text, text)')) AS functions (f)",
            [reader.role],
        ).fetchone()
    assert granted == (True, 0)


def test_views_have_no_internal_columns(reader: Reader) -> None:
    hidden = (
        "owner_id",
        "owner_epoch",
        "hostname",
        "host_key",
        "pid",
        "hash",
        "callback",
        "secret",
        "worker_id",
        "task_id",
    )
    partners = ("requests", "assets", "versions", "platforms", "layer_metadata", "layer_catalog")
    with psycopg.connect(reader.owner_dsn) as conn:
        columns = conn.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'gateway'"
        ).fetchall()
    odd = [
        f"{view}.{column}"
        for view, column in columns
        if (any(word in column for word in hidden) and column != "content_hash")
        or (view in partners and any(word in column for word in ("job", "node", "correlation", "_by")))
    ]
    assert odd == ["requests.submitted_by"]  # The partner's own name.


async def test_views_created_later_can_be_read_too(conn: Connection, dsn: str, role: str) -> None:
    address = await make_reader(dsn, role)
    await conn.execute("CREATE VIEW gateway.later AS SELECT 1 AS x")
    with psycopg.connect(address) as reading:
        assert reading.execute("SELECT x FROM gateway.later").fetchone() == (1,)


async def test_creating_the_reader_again_changes_its_password_and_repairs_its_privileges(
    conn: Connection, dsn: str, role: str
) -> None:
    assert await create_reader(conn, role, PASSWORD)
    await conn.execute(f"REVOKE ALL ON ALL TABLES IN SCHEMA gateway FROM {role}")
    await conn.execute(f"GRANT USAGE ON SCHEMA dagapp TO {role}; GRANT ALL ON dagapp.dag_jobs TO {role}")
    [before] = await (await conn.execute("SELECT rolpassword FROM pg_authid WHERE rolname = $1", [role])).fetchall()
    assert not await create_reader(conn, role, "another good password")
    [after] = await (await conn.execute("SELECT rolpassword FROM pg_authid WHERE rolname = $1", [role])).fetchall()
    assert before["rolpassword"].startswith("SCRAM-SHA-256$")
    assert before != after
    with psycopg.connect(as_role(dsn, role), autocommit=True) as reading:
        reading.execute("SELECT FROM gateway.requests")
        assert_refused(reading, "SELECT FROM dagapp.dag_jobs", (errors.InsufficientPrivilege,))


async def test_an_existing_role_of_another_kind_is_not_changed(conn: Connection, role: str) -> None:
    await conn.execute(f"CREATE ROLE {role} LOGIN")
    with pytest.raises(Conflict, match="is not a reader of the gateway"):
        await create_reader(conn, role, PASSWORD)


async def test_a_role_with_more_privileges_is_not_created(conn: Connection, role: str) -> None:
    await conn.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
    with pytest.raises(Conflict, match="CREATE on the schema public"):
        await create_reader(conn, role, PASSWORD)
    assert await (await conn.execute("SELECT FROM pg_roles WHERE rolname = $1", [role])).fetchall() == []


@pytest.mark.parametrize(
    ("name", "password", "message"),
    [
        ("pg_reader", PASSWORD, "not a usable name"),
        ("Reader", PASSWORD, "not a usable name"),
        ('r"; DROP ROLE postgres; --', PASSWORD, "not a usable name"),
        ("reader", "short", "at least 12 characters"),
    ],
)
async def test_bad_names_and_passwords_are_refused(conn: Connection, name: str, password: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        await create_reader(conn, name, password)


def test_the_command_prints_a_generated_password_once(dsn: str, role: str) -> None:
    result = call("db", "create-reader", role, "--database-url", dsn)
    assert result.code == 0, result.err
    password = result.out.strip()
    assert len(password) == 32
    assert password not in result.err
    again = call(
        "db", "create-reader", role, "--password-stdin", "--json", "--database-url", dsn, input=f"{PASSWORD}\n"
    )
    assert again.json == {"role": role, "is_new": False, "password": None}
    with psycopg.connect(as_role(dsn, role)) as reading:
        assert reading.execute("SELECT count(*) FROM gateway.requests").fetchone() == (0,)
    empty = call("db", "create-reader", role, "--password-stdin", "--database-url", dsn, input="")
    assert empty.code == 2
    assert "stdin has no password" in empty.err


@pytest.mark.parametrize(
    "values",
    [{}, {"only_live": True}, {"only_live": True, "only_orphans": True}, {"correlation_id": "x"}],
    ids=["all", "unfinished", "orphans", "by correlation id"],
)
def test_job_lists_use_indexes_through_the_views(reader: Reader, values: dict[str, Any]) -> None:
    unused = {"status": None, "workflow_id": None, "correlation_id": None, "idempotency_key": None}
    page = {"only_live": False, "only_orphans": False, "orphan_seconds": 120.0, "limit": 50, "offset": 0}
    statement = SQL["gateway_jobs"]
    with psycopg.connect(reader.dsn, cursor_factory=psycopg.RawCursor) as conn:
        conn.execute("SET enable_seqscan = off")
        rows = conn.execute(b"EXPLAIN " + statement.text, statement.values({**unused, **page, **values})).fetchall()
    plan = "\n".join(line for (line,) in rows)
    assert "Subquery Scan" not in plan, plan  # The view would otherwise be computed before it is filtered and limited.
    assert "Index Scan" in plan and "Seq Scan on dag_jobs" not in plan, plan


@contextmanager
def owned_database(server: EmbeddedServer, rights: str = "") -> Iterator[str]:
    """As on a managed server: the owner is not a superuser. Returns the owner's URL."""
    owner = f"{new_role()}_owner"
    with psycopg.connect(server.dsn_of("postgres"), autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {owner} LOGIN {rights} PASSWORD '{PASSWORD}'")
        admin.execute(f"CREATE DATABASE {owner} OWNER {owner} STRATEGY WAL_LOG")
        try:
            upgrade(as_role(server.dsn_of(owner), owner))
            yield as_role(server.dsn_of(owner), owner)
        finally:
            admin.execute(f"DROP DATABASE {owner} WITH (FORCE)")
            admin.execute(f"DROP ROLE {owner}")


async def test_an_owner_with_createrole_can_create_a_reader(pg_server: EmbeddedServer) -> None:
    role = new_role()
    with dropped_after(pg_server.dsn_of("postgres"), role), owned_database(pg_server, "CREATEROLE") as dsn:
        async with opened(dsn, application="test") as conn:
            assert await create_reader(conn, role, PASSWORD)
            assert not await create_reader(conn, role, PASSWORD)
        with psycopg.connect(as_role(dsn, role), autocommit=True) as reading:
            reading.execute("SELECT FROM gateway.requests")
            reading.execute("SET default_transaction_read_only = off")
            assert_refused(reading, "CREATE TEMPORARY TABLE t (x int)", (errors.InsufficientPrivilege,))
            assert_refused(reading, "SELECT FROM dagapp.dag_jobs", (errors.InsufficientPrivilege,))


async def test_an_owner_without_createrole_gets_an_error(pg_server: EmbeddedServer) -> None:
    with owned_database(pg_server) as dsn:
        async with opened(dsn, application="test") as conn:
            with pytest.raises(Forbidden, match="run this as a role that has CREATEROLE"):
                await create_reader(conn, new_role(), PASSWORD)
