import ast
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import psycopg
import pytest
from fleet import fan, rows, single
from job_owner import owner

import dagmaster
from dagmaster.engine.messages import Load, TaskCompleted
from dagmaster.store import batch, statements, tasks
from dagmaster.store.batch import commit
from dagmaster.store.connect import connect, connect_hot, keep_json
from dagmaster.store.doctor import CHECKS
from dagmaster.store.instances import register_worker, this_instance
from dagmaster.store.mail_codec import MailRow, encode
from dagmaster.store.mailbox import read_mail
from dagmaster.store.statements import SQL
from dagmaster.store.tables import Base

PACKAGE = Path(dagmaster.__file__).parent
HOT_TABLES = (
    "dag_jobs",
    "dag_node_states",
    "dag_tasks_waiting",
    "dag_tasks_running",
    "dag_mailbox",
    "dag_task_results",
)
RUNNERS = ("run", "fetch", "fetch_as", "fetch_one", "fetch_one_as", "_row")
LOCKS = ("held", "versions_held", "no_versions_held")


@pytest.fixture
def plain(dsn: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield conn


def is_part(name: str) -> bool:
    """Whether it is a part of a batch, which is invalid alone."""
    return name.startswith("check_") or name in (*LOCKS, *batch.PARTS.values(), *batch.OF_STORED.values())


def every_statement() -> dict[str, statements.Statement]:
    parts = tuple(batch.PARTS.values())
    return {name: statement for name, statement in SQL.items() if not is_part(name)} | {
        "a whole batch": batch.statement_of(parts, copies=False, moves_versions=False, calls_workers=True),
        "a whole batch that copies": batch.statement_of(parts, copies=True, moves_versions=True, calls_workers=True),
    }


def test_every_statement_is_valid_for_the_schema(plain: psycopg.Connection[Any]) -> None:
    for name, statement in every_statement().items():
        prepared = plain.pgconn.prepare(b"", statement.text)
        assert prepared.status == psycopg.pq.ExecStatus.COMMAND_OK, f"{name}: {prepared.error_message.decode()}"
        described = plain.pgconn.describe_prepared(b"")
        assert described.nparams == len(statement.names), name


def columns(conn: psycopg.Connection[Any], statement: statements.Statement) -> list[bytes | None] | str:
    """The columns of its result, or why there are none."""
    prepared = conn.pgconn.prepare(b"", statement.text)
    if prepared.status != psycopg.pq.ExecStatus.COMMAND_OK:
        return prepared.error_message.decode()
    described = conn.pgconn.describe_prepared(b"")
    return [described.fname(number) for number in range(described.nfields)]


def test_every_statement_works_on_the_schema_one_step_ahead(plain: psycopg.Connection[Any]) -> None:
    """An upgrade adds columns while the old program runs."""
    before = {name: columns(plain, statement) for name, statement in every_statement().items()}
    with plain.transaction(force_rollback=True):
        for table in Base.metadata.tables.values():
            plain.execute(f"ALTER TABLE {table.fullname} ADD COLUMN a_new_one text DEFAULT 'new'")
        changed = {
            name: after
            for name, statement in every_statement().items()
            if (after := columns_in(plain, statement)) != before[name]
        }
    assert changed == {}


def columns_in(conn: psycopg.Connection[Any], statement: statements.Statement) -> list[bytes | None] | str:
    """In a transaction that survives an error."""
    conn.execute("SAVEPOINT one")
    names = columns(conn, statement)
    conn.execute("ROLLBACK TO SAVEPOINT one")
    return names


def test_no_named_parameter_remains_in_the_compiled_text() -> None:
    for name, statement in SQL.items():
        assert not re.search(rb"(?<![:\w]):[a-z_]+", statement.text), name
        assert statement.names == tuple(dict.fromkeys(statement.names)), name


def test_duplicate_statement_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text("-- one --\nSELECT 1;\n")
    (tmp_path / "b.sql").write_text("-- one --\nSELECT 2;\n")
    with pytest.raises(AssertionError, match="one"):
        statements._load(tmp_path)


def test_a_fragment_is_substituted_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text(
        "-- {doubled} --\n-- Of a row `n`.\nn.number * 2\n\n-- {named} --\n{doubled} AS twice\n"
    )
    (tmp_path / "b.sql").write_text("-- one --\nSELECT {named} FROM numbers n WHERE {doubled} > 2;\n")
    assert statements._load(tmp_path) == {"one": "SELECT n.number * 2 AS twice FROM numbers n WHERE n.number * 2 > 2"}


def test_every_fragment_is_used() -> None:
    code = "\n".join(path.read_text() for path in (PACKAGE / "store" / "sql").glob("*.sql"))
    fragments = re.findall(r"^-- ({\w+}) --$", code, re.MULTILINE)
    assert fragments and [name for name in fragments if code.count(name) == 1] == []


def test_every_statement_is_used() -> None:
    code = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    composed = {f"find_{check.name}" for check in CHECKS} | {f"vacuum_{table}" for table in HOT_TABLES}
    for name in SQL:
        assert f'"{name}"' in code or is_part(name) or name in composed, f"nobody runs {name}"


def calls_of_statements(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """The name of each statement that the code of this file runs, with the call."""
    for call in ast.walk(ast.parse(path.read_text())):
        if isinstance(call, ast.Call):
            names = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and arg.value in SQL]
            yield from ((name, call) for name in names)


def test_a_statement_is_run_only_by_the_module_of_its_file() -> None:
    files = {
        name: path.stem
        for path in (PACKAGE / "store" / "sql").glob("*.sql")
        for name in re.findall(r"^-- (\w+) --$", path.read_text(), re.MULTILINE)
    }
    strangers = [
        f"{path.relative_to(PACKAGE)} runs {name} of {files[name]}.sql"
        for path in PACKAGE.rglob("*.py")
        for name, call in calls_of_statements(path)
        if isinstance(call.func, ast.Name) and call.func.id in RUNNERS
        if path != PACKAGE / "store" / f"{files[name]}.py"
    ]
    assert strangers == []
    assert {stem for stem in files.values() if not (PACKAGE / "store" / f"{stem}.py").exists()} == set()


def test_typed_rows_have_the_columns_of_their_statements(plain: psycopg.Connection[Any]) -> None:
    checked = 0
    for path in (PACKAGE / "store").glob("*.py"):
        for name, call in calls_of_statements(path):
            if isinstance(call.func, ast.Name) and call.func.id in ("fetch_as", "fetch_one_as"):
                assert isinstance(call.args[1], ast.Name)
                row_type = getattr(import_module(f"dagmaster.store.{path.stem}"), call.args[1].id)
                assert columns(plain, SQL[name]) == [key.encode() for key in get_type_hints(row_type)], name
                checked += 1
    assert checked > 0


async def test_hot_statements_use_indexes(dsn: str) -> None:
    async with await connect_hot(dsn, application="test") as conn:
        for name in (
            "a whole batch",
            "a whole batch that copies",
            "claim_tasks",
            "claim_and_announce_tasks",
            "tell_starts",
            "report_tasks",
            "worker_orders",
            "load_jobs",
            "load_nodes",
        ):
            cursor = await conn.execute(b"EXPLAIN (GENERIC_PLAN) " + every_statement()[name].text, prepare=False)
            plan = "\n".join(row["QUERY PLAN"] for row in await cursor.fetchall())
            assert not re.findall(r"Seq Scan on \w+", plan), f"{name}:\n{plan}"


async def scanned(conn: Any) -> set[str]:
    """The tables that this transaction has scanned."""
    cursor = await conn.execute(
        b"SELECT relname FROM pg_stat_xact_user_tables WHERE schemaname = 'dagapp' AND seq_scan > 0"
    )
    return {row["relname"] for row in await cursor.fetchall()} & set(HOT_TABLES)


async def fill(dsn: str) -> None:
    """Many other jobs, with current statistics."""
    await rows(
        dsn,
        """INSERT INTO dagapp.dag_jobs (job_id, workflow_id, workflow_version, workflow_hash, status, priority)
           SELECT n, 'w', 1, 'h', 'completed', 0 FROM generate_series(1, 2000) n""",
    )
    await rows(
        dsn,
        """INSERT INTO dagapp.dag_node_states (job_id, node_id, status)
           SELECT n, 'work', 'completed' FROM generate_series(1, 2000) n""",
    )


@pytest.mark.parametrize("is_analysed", [True, False], ids=["analysed", "young"])
async def test_a_whole_step_scans_no_table(dsn: str, is_analysed: bool) -> None:
    await fill(dsn)
    if is_analysed:
        await rows(dsn, "ANALYZE")
    async with owner(dsn, hot=True) as me:
        conn = me.conn
        await me.submit(fan(), {"items": list(range(50))})
        async with conn.transaction():
            await me.advance(Load())
            worker = this_instance()
            await register_worker(conn, worker, ["q"], 4)
            claimed = await tasks.claim(conn, worker.worker_id, 10)
            assert len(claimed) == 10
            await tasks.report(conn, worker.worker_id, [completed(row) for row in claimed])
            assert len(await read_mail(conn, me.id, 1000)) == 1 + 10
            now = datetime.now(UTC)
            await me.advance(*(TaskCompleted(r["node_id"], r["task_id"], "w", now, b"{}") for r in claimed))
            assert await scanned(conn) == set()


@pytest.mark.parametrize("name", ["close_late_mail", "cancel_orphans"])
async def test_frequent_queries_do_not_scan_all_jobs(dsn: str, name: str) -> None:
    """A merge join scans an index and is chosen while the mailbox is small."""
    await fill(dsn)
    await rows(dsn, "UPDATE dagapp.dag_jobs SET parent_job_id = job_id - 1, parent_task_id = 't' WHERE job_id > 9")
    await rows(dsn, "INSERT INTO dagapp.dag_mailbox (job_id, kind) SELECT n, 'signal' FROM generate_series(1, 50) n")
    await rows(dsn, "ANALYZE")
    async with await connect(dsn, application="test") as conn:
        cursor = await conn.execute(b"EXPLAIN (GENERIC_PLAN) " + SQL[name].text, prepare=False)
        plan = "\n".join(row["QUERY PLAN"] for row in await cursor.fetchall())
    scans = re.findall(r"Scan (?:using (\w+) )?on dag_jobs.*\n\s+(Index Cond|Recheck Cond)?", plan)
    assert scans and all(index == "ix_dag_jobs_live" or condition for index, condition in scans), plan


def completed(row: dict[str, Any]) -> MailRow:
    return encode(row["job_id"], TaskCompleted(row["node_id"], row["task_id"], "w", datetime.now(UTC), b"{}", 1))


async def test_a_hot_connection_is_configured_for_keyed_statements(dsn: str) -> None:
    async with await connect_hot(dsn, application="test", durable=False) as conn:
        keep_json(conn)

        async def setting(name: str) -> str:
            row = await (await conn.execute(f"SHOW {name}".encode())).fetchone()
            return row[name]

        assert await setting("enable_seqscan") == "off"
        assert await setting("plan_cache_mode") == "force_generic_plan"
        assert await setting("synchronous_commit") == "off"
        assert await setting("idle_in_transaction_session_timeout") == "1min"
        row = await (await conn.execute(b"""SELECT '{"a": 1}'::jsonb AS b, '[1]'::json AS j""")).fetchone()
        assert (row["b"], row["j"]) == (b'{"a": 1}', b"[1]")


async def test_a_durable_connection_commits_synchronously(dsn: str) -> None:
    async with await connect_hot(dsn, application="test") as conn:
        row = await (await conn.execute(b"SHOW synchronous_commit")).fetchone()
        assert row["synchronous_commit"] == "on"


async def test_a_commit_of_only_a_fence_is_valid(dsn: str) -> None:
    async with owner(dsn) as me:
        await me.submit(single())
        loaded = await me.load()
        changes = me.decide(loaded)
        await commit(me.conn, me.batch((changes, loaded.owner_epoch)))
