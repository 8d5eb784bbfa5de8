"""Jobs of real orchestrators update versions of assets while others update or decide on them."""

import asyncio
import json
import os
from typing import Any

import pytest
from asset_rows import add_asset
from fleet import Fleet, OrchestratorRole, child, fleet, graph, single, task

from dagmaster.engine.messages import Cancel
from dagmaster.ids import JobId
from dagmaster.model.asset import ApprovalState, ProcessingStatus
from dagmaster.model.workflow import FanInNode, FanOutNode
from dagmaster.service.asset_contract import Reject
from dagmaster.service.assets import decide
from dagmaster.service.context import ServiceContext
from dagmaster.settings import load_settings
from dagmaster.store import submission
from dagmaster.store.asset_versions import find_version
from dagmaster.store.assets import lock_asset
from dagmaster.store.connect import Connection, opened
from dagmaster.store.mail_codec import encode
from dagmaster.store.mailbox import add_mail
from dagmaster.store.notifications import MAIL
from dagmaster.store.submission import NewJob

NEVER_RUN = single(queue="nobody")
ROUNDS = int(os.environ.get("DAGMASTER_ASSET_WORLDS", "5"))


async def process_and_export(
    running: Fleet, owner: OrchestratorRole, processed: str, exported: str
) -> tuple[JobId, JobId]:
    """Two jobs of this owner: one processes a version, one exports another."""
    job_ids = []
    async with running.connected() as conn:
        for asset_id, column in ((processed, "current_job_id"), (exported, "export_job_id")):
            new = NewJob(NEVER_RUN, {}, asset_id=asset_id, version_ordinal=0)
            submitted = await submission.submit(conn, new, threshold_seconds=30, owner_id=owner.id)
            await conn.execute(
                f"UPDATE dagapp.asset_versions SET {column} = $1, processing_status = 'queued' WHERE asset_id = $2",
                [submitted.job_id, asset_id],
            )
            job_ids.append(submitted.job_id)
    first, second = job_ids
    return first, second


async def end_at_once(conn: Connection, *job_ids: JobId) -> None:
    """Each owner reads its mail at once and ends its jobs in one transaction."""
    async with conn.transaction():
        await add_mail(conn, [encode(job_id, Cancel("ada")) for job_id in job_ids])
        await conn.execute(f"NOTIFY {MAIL}")


async def until_waiting(conn: Connection, sessions: int) -> None:
    """Wait until this many sessions wait for locks."""
    query = "SELECT count(*) >= $1 AS ok FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
    while True:
        [row] = await (await conn.execute(query, [sessions])).fetchall()
        if row["ok"]:
            return
        await asyncio.sleep(0.005)


async def test_two_owners_updating_the_same_versions_in_opposite_order_do_not_deadlock(
    dsn: str, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Each owner has a job that processes the version that the other exports, and ends both in one transaction."""
    for asset_id in ("a", "b"):
        await add_asset(dsn, asset_id, latest=None)
    async with fleet(dsn) as running, opened(dsn, application="observer") as observer:
        first, two = await running.orchestrator(), await running.orchestrator()
        for _ in range(ROUNDS):
            jobs = [
                *await process_and_export(running, first, "a", "b"),
                *await process_and_export(running, two, "b", "a"),
            ]
            await running.until("SELECT bool_and(status <> 'pending') AS ok FROM dagapp.dag_jobs")
            async with conn.transaction():
                await conn.execute("SELECT FROM dagapp.asset_versions WHERE asset_id = 'a' FOR NO KEY UPDATE")
                await end_at_once(observer, *jobs)
                await until_waiting(observer, 2)
            assert {job["status"] for job in await running.ended(*jobs)} == {"cancelled"}
    assert not [record.getMessage() for record in caplog.records if "deadlock" in record.getMessage()]


async def add_collections(conn: Connection, *collection_ids: str) -> None:
    """Update each collection once, as the end of a job does."""
    async with conn.transaction():
        for collection_id in collection_ids:
            outputs = json.dumps({"stac_collection": {"id": collection_id}})
            await conn.execute("SELECT dagapp.store_stac_documents($1::jsonb, 'a', 0)", [outputs])


async def test_two_owners_updating_the_same_collections_in_opposite_order_do_not_deadlock(
    dsn: str, conn: Connection
) -> None:
    async with opened(dsn, application="owner") as owner, opened(dsn, application="observer") as observer:
        async with conn.transaction():
            await add_collections(conn, "a")
            crossing = asyncio.create_task(add_collections(owner, "b", "a"))
            await until_waiting(observer, 1)
            await add_collections(conn, "b")
        await crossing


class Processing:
    """A job that processes version 0 of asset `a` and ends on request."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.job_id = JobId(0)

    async def finish(self, ctx: Any) -> dict[str, str]:
        await self.may_end.wait()
        return {"blob_path": "silver/a.tif"}

    async def start(self, running: Fleet) -> None:
        await add_asset(running.dsn, "a", latest=None)
        await running.worker(owner=await running.orchestrator())
        async with running.connected() as conn:
            new = NewJob(single("finish"), {}, asset_id="a", version_ordinal=0)
            self.job_id = (await submission.submit(conn, new, threshold_seconds=30)).job_id
            await conn.execute("UPDATE dagapp.asset_versions SET current_job_id = $1", [self.job_id])
            await conn.execute("UPDATE dagapp.asset_versions SET processing_status = 'processing'")
        await running.until("SELECT status = 'running' AS ok FROM dagapp.dag_node_states WHERE node_id = 'work'")


async def test_a_job_does_not_wait_for_an_open_decision_on_its_asset(dsn: str, conn: Connection) -> None:
    processing = Processing()
    async with fleet(dsn, finish=processing.finish) as running:
        await processing.start(running)
        async with conn.transaction():
            await lock_asset(conn, "a")
            processing.may_end.set()
            await running.completed(processing.job_id)
            version = await find_version(conn, "a", 0)
        assert version is not None
        assert (version.processing_status, version.blob_path) == (ProcessingStatus.COMPLETED, "silver/a.tif")


async def test_a_decision_based_on_a_stale_version_is_repeated(dsn: str, conn: Connection) -> None:
    processing = Processing()
    async with (
        fleet(dsn, finish=processing.finish) as running,
        opened(dsn, application="observer") as observer,
        opened(dsn, application="reviewer") as reviewer,
    ):
        await processing.start(running)
        async with conn.transaction():
            await conn.execute("SELECT FROM dagapp.asset_versions FOR NO KEY UPDATE")
            processing.may_end.set()
            await until_waiting(observer, 1)
            context = ServiceContext(reviewer, load_settings(), actor="ada")
            rejection = asyncio.ensure_future(decide(context, None, "a", Reject("blurred")))
            await until_waiting(observer, 2)
        await rejection
        await running.completed(processing.job_id)
        version = await find_version(conn, "a", 0)
        events = await running.rows("SELECT event_type FROM dagapp.asset_events ORDER BY event_id")
    assert version is not None
    assert (version.approval_state, version.processing_status) == (ApprovalState.REJECTED, ProcessingStatus.COMPLETED)
    assert [event["event_type"] for event in events] == ["processing_completed", "version_rejected"]


CHILDREN = int(os.environ.get("DAGMASTER_CHILDREN", "300"))


async def test_a_job_with_many_nodes_updates_its_version(dsn: str, conn: Connection) -> None:
    async def finish(ctx: Any) -> dict[str, str]:
        return {"blob_path": "silver/a.tif", "table_name": "geo.a"}

    nodes: dict[str, Any] = {
        "spread": FanOutNode(source="{{ inputs.items }}", task=child(), next=("gather",)),
        "gather": FanInNode(aggregation="collect", next=("work",)),
        "work": task("finish", "END"),
    }
    definition = graph(nodes, "fan", start="spread", inputs={"items": "array"})
    await add_asset(dsn, "a", latest=None)
    async with fleet(dsn, finish=finish) as running:
        await running.worker(owner=await running.orchestrator())
        new = NewJob(definition, {"items": list(range(CHILDREN))}, asset_id="a", version_ordinal=0)
        async with running.connected() as own, own.transaction():
            job_id = (await submission.submit(own, new, threshold_seconds=30)).job_id
            await own.execute(
                "UPDATE dagapp.asset_versions SET current_job_id = $1, processing_status = 'queued'", [job_id]
            )
        await running.completed(job_id)
    version = await find_version(conn, "a", 0)
    assert version is not None
    assert (version.processing_status, version.blob_path) == (ProcessingStatus.COMPLETED, "silver/a.tif")
