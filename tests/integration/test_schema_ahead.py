"""An older program works on a newer schema: an upgrade needs no downtime."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest
from fleet import chain, rows, single
from web import web

from dagmaster.store.connect import StalePlan, connect_hot, is_transient
from dagmaster.store.instances import register_orchestrator, this_instance
from dagmaster.store.orchestrators import list_orchestrators
from dagmaster.store.statements import Statement, run_statement
from dagmaster.store.tables import Base

TABLES = [table.fullname for table in Base.metadata.tables.values()]
DONE = "SELECT count(*) = 2 AS ok FROM dagapp.dag_jobs WHERE job_id = ANY(%s) AND status = 'completed'"
PREPARED_AFTER = 6  # A statement is prepared after this many runs.


@asynccontextmanager
async def one_step_ahead(dsn: str) -> AsyncIterator[None]:
    for table in TABLES:
        await rows(dsn, f"ALTER TABLE {table} ADD COLUMN a_new_one text DEFAULT 'new'")
    try:
        yield
    finally:
        for table in TABLES:
            await rows(dsn, f"ALTER TABLE {table} DROP COLUMN a_new_one")


async def test_everything_works_while_columns_are_added(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        await api.fleet.worker()
        job_id = await api.fleet.submit(chain(2))
        await api.fleet.completed(job_id)
        pages = [f"jobs/{job_id}", f"jobs/{job_id}/nodes/n0", f"jobs/{job_id}/timeline", "jobs", "schedules"]
        for _ in range(PREPARED_AFTER):
            for page in pages:
                await api.get(f"/api/v1/{page}")
            await api.fleet.run(single())
        async with one_step_ahead(dsn):
            for page in pages:
                await api.get(f"/api/v1/{page}")
            submitted = await api.post("/api/v1/jobs", {"workflow_id": "single"}, 201)
            job_ids = [int(submitted["job_id"]), await api.fleet.submit(chain(2))]
            await api.fleet.until(DONE, lambda: [job_ids])


async def test_a_stale_plan_is_prepared_again(dsn: str) -> None:
    change = "ALTER TABLE dagapp.dag_orchestrators ALTER COLUMN hostname TYPE {}"
    async with await connect_hot(dsn, application="test") as conn:
        await register_orchestrator(conn, this_instance())
        [before] = await list_orchestrators(conn)
        await rows(dsn, change.format("text"))
        try:
            [after] = await list_orchestrators(conn)
            assert (after["orchestrator_id"], after["hostname"]) == (before["orchestrator_id"], before["hostname"])
        finally:
            await rows(dsn, change.format("varchar(255)"))


async def test_in_a_transaction_a_stale_plan_is_prepared_again_by_the_next_one(dsn: str) -> None:
    change = "ALTER TABLE dagapp.dag_orchestrators ALTER COLUMN hostname TYPE {}"
    async with await connect_hot(dsn, application="test") as conn:
        await list_orchestrators(conn)
        await rows(dsn, change.format("text"))
        try:
            refused = None
            try:
                async with conn.transaction():
                    await list_orchestrators(conn)
            except StalePlan as error:
                refused = error
            assert refused is not None
            async with conn.transaction():
                await list_orchestrators(conn)
        finally:
            await rows(dsn, change.format("varchar(255)"))


async def test_an_unsupported_feature_is_not_retried(dsn: str) -> None:
    odd = Statement(b"CREATE TABLE elsewhere.dagapp.odd ()", ())
    async with await connect_hot(dsn, application="test") as conn:
        with pytest.raises(psycopg.errors.FeatureNotSupported) as refused:
            await run_statement(conn, odd)
        assert not is_transient(refused.value)
