"""Operations on assets, several at once, in a real database, and what is there after each round.

Operations that run at once must have the effect of some order of them, one after the other. Gates make them meet: a
round may begin with the rows of assets or versions locked, so that operations read before, and write after, others.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from asset_invariants import Attempt, Checks, Seen
from asset_model import (
    Asset,
    Decide,
    Event,
    Export,
    Job,
    MoveJob,
    Operation,
    ProcessAgain,
    Publish,
    Refused,
    Submit,
    Unpublish,
    Version,
    World,
)
from fleet import graph, task

from dagmaster.assets import layers
from dagmaster.errors import DagmasterError, UnknownWorkflow
from dagmaster.model.asset import DataType, asset_id_of
from dagmaster.model.workflow import Workflow
from dagmaster.service import asset_submission, assets
from dagmaster.service.asset_contract import AssetSubmission
from dagmaster.service.context import KnownFleet, ServiceContext
from dagmaster.service.contract import SubmitRequest
from dagmaster.service.definitions import Definitions
from dagmaster.settings import load_settings
from dagmaster.store.connect import Connection, opened

AT_ONCE = 4
PLATFORM = "ddh"
GATES = {
    "none": None,
    "assets": "SELECT FROM dagapp.geospatial_assets WHERE asset_id = ANY($1) FOR NO KEY UPDATE",
    "versions": "SELECT FROM dagapp.asset_versions WHERE asset_id = ANY($1) FOR NO KEY UPDATE",
}
WORKFLOWS = {
    name: graph({"work": task("echo", "END")}, name, start="work", inputs={}).workflow
    for name in ("ingest", "adf_export")
}


EVERYTHING = """
    WITH jobs AS (
        SELECT job_id, asset_id, version_ordinal, status FROM dagapp.dag_jobs WHERE asset_id = ANY($1)
    )
    SELECT jsonb_build_object(
        'assets', (SELECT coalesce(jsonb_agg(a), '[]') FROM dagapp.geospatial_assets a WHERE asset_id = ANY($1)),
        'versions', (SELECT coalesce(jsonb_agg(v), '[]') FROM dagapp.asset_versions v WHERE asset_id = ANY($1)),
        'events', (SELECT coalesce(jsonb_agg(e), '[]') FROM dagapp.asset_events e WHERE asset_id = ANY($1)
                   AND event_type NOT IN ('metadata_published', 'metadata_unpublished')),
        'requests', (SELECT coalesce(jsonb_agg(r), '[]') FROM dagapp.dag_api_requests r WHERE asset_id = ANY($1)),
        'jobs', (SELECT coalesce(jsonb_agg(j), '[]') FROM jobs j),
        'asked_to_stop', (SELECT coalesce(jsonb_agg(m.job_id), '[]') FROM dagapp.dag_mailbox m JOIN jobs USING (job_id)
                 WHERE m.kind = 'cancel'),
        'published', (SELECT coalesce(jsonb_agg(asset_id), '[]') FROM dagapp.layer_metadata
                      WHERE asset_id = ANY($1) AND published_at IS NOT NULL),
        'catalog', (SELECT coalesce(jsonb_object_agg(source_asset_id, version_ordinal), '{}') FROM dagapp.layer_catalog
                    WHERE source_asset_id = ANY($1))
    ) AS seen"""


def find_workflow(name: str) -> Workflow:
    if name not in WORKFLOWS:
        raise UnknownWorkflow(f"no workflow is named {name!r}")
    return WORKFLOWS[name]


async def nobody(_: Connection) -> KnownFleet:
    return KnownFleet(False, ())


@dataclass
class Site:
    """One world in a shared database: its assets have their own references."""

    name: str
    conns: Sequence[Connection]
    observer: Connection
    assets: tuple[str, ...] = ("a", "b")
    world: World = field(default_factory=World)

    def __post_init__(self) -> None:
        self.settings = load_settings()
        self.definitions = Definitions(self.settings, {}, find_workflow)
        self.ids = {name: asset_id_of(PLATFORM, self.refs(name)) for name in self.assets}
        self.names = {asset_id: name for name, asset_id in self.ids.items()}
        self.checks = Checks(self.ids)

    def refs(self, name: str) -> dict[str, str]:
        return {"dataset_id": f"{self.name}-{name}", "resource_id": "r"}

    @classmethod
    def of(cls, conns: Sequence[Connection], name: str) -> "Site":
        """The last connection reads."""
        return cls(name, conns[:-1], conns[-1])

    async def round(self, *operations: Operation, gate: str = "none") -> list[Attempt]:
        attempts = await self._run(operations, gate)
        seen = await self.read()
        self.checks.check(self.world, attempts, seen)
        self.world = seen.world
        return attempts

    async def _run(self, operations: Sequence[Operation], gate: str) -> list[Attempt]:
        lock = GATES[gate]
        if lock is None:
            return await asyncio.gather(*map(self._attempt, operations, self.conns))
        async with self.observer.transaction():
            await self.observer.execute(lock, [list(self.ids.values())])
            tasks = []
            for operation, conn in zip(operations, self.conns, strict=False):
                tasks.append(asyncio.ensure_future(self._attempt(operation, conn)))
                await self._settled(tasks[-1], conn)
        return await asyncio.gather(*tasks)

    async def _settled(self, attempt: "asyncio.Future[Attempt]", conn: Connection) -> None:
        """Wait until the task has ended or waits for a lock."""
        query = "SELECT cardinality(pg_blocking_pids($1)) > 0 AS is_blocked"
        while not attempt.done():
            [row] = await (await self.observer.execute(query, [conn.info.backend_pid])).fetchall()
            if row["is_blocked"]:
                return
            await asyncio.sleep(0.001)

    async def _attempt(self, operation: Operation, conn: Connection) -> Attempt:
        actor = f"user{self.conns.index(conn)}"
        context = ServiceContext(conn, self.settings, actor=actor, find_fleet=nobody)
        try:
            return Attempt(operation, actor, await self._perform(operation, context))
        except (DagmasterError, Refused) as error:
            return Attempt(operation, actor, error=str(error) if isinstance(error, Refused) else type(error).__name__)

    async def _perform(self, operation: Operation, context: ServiceContext) -> int | None:
        """Return the job that the operation submitted, if any."""
        match operation:
            case Submit(name, is_resubmission):
                submission = AssetSubmission(
                    SubmitRequest("ingest", submitted_by=context.actor or ""),
                    PLATFORM,
                    self.refs(name),
                    DataType.RASTER,
                    resubmit=is_resubmission,
                )
                return (await asset_submission.submit_version(context, self.definitions, submission)).job_id
            case Decide(name, command):
                return (await assets.decide(context, self.definitions, self.ids[name], command)).export_job_id
            case ProcessAgain(name, command):
                return (await asset_submission.reprocess(context, self.definitions, self.ids[name], command)).job_id
            case Export(name, ordinal):
                result = await assets.export_version(context, self.definitions, self.ids[name], ordinal)
                return result.export_job_id
            case Publish(name):
                await describe_layer(context.conn, self.ids[name])
                await layers.publish(context.conn, self.ids[name], actor=context.actor)
                return None
            case Unpublish(name):
                await describe_layer(context.conn, self.ids[name])
                await layers.unpublish(context.conn, self.ids[name], actor=context.actor)
                return None
            case MoveJob(job_id, status):
                await move_job(context.conn, job_id, status)
                return None

    async def read(self) -> Seen:
        [row] = await (await self.observer.execute(EVERYTHING, [list(self.ids.values())])).fetchall()
        seen = row["seen"]
        world = World(
            assets={self.names[row["asset_id"]]: _asset(row, seen["versions"]) for row in seen["assets"]},
            jobs={
                row["job_id"]: Job(self.names[row["asset_id"]], row["version_ordinal"], row["status"])
                for row in sorted(seen["jobs"], key=itemgetter("job_id"))
            },
            requests={row["job_id"]: row["status"] for row in seen["requests"]},
            events=Counter(_event(row, self.names[row["asset_id"]]) for row in seen["events"]),
        )
        catalog = {self.names[asset_id]: ordinal for asset_id, ordinal in seen["catalog"].items()}
        published = frozenset(self.names[asset_id] for asset_id in seen["published"])
        return Seen(world, seen["assets"], seen["versions"], frozenset(seen["asked_to_stop"]), published, catalog)


def _event(row: dict[str, Any], name: str) -> Event:
    return Event(name, row["version_ordinal"], row["event_type"], row["actor"], row["job_id"])


def _asset(row: dict[str, Any], versions: Sequence[dict[str, Any]]) -> Asset:
    return Asset(
        clearance=row["clearance_state"],
        exposure=row["exposure_mode"],
        latest=row["latest_approved_version_ordinal"],
        next_ordinal=row["next_ordinal"],
        is_deleted=row["deleted_at"] is not None,
        versions={
            version["version_ordinal"]: Version(
                approval=version["approval_state"],
                processing=version["processing_status"],
                revision=version["revision"],
                job_id=version["current_job_id"],
                blob_path=version["blob_path"],
                export_job_id=version["export_job_id"],
                external_blob_path=version["external_blob_path"],
                is_deleted=version["deleted_at"] is not None,
            )
            for version in sorted(versions, key=itemgetter("version_ordinal"))
            if version["asset_id"] == row["asset_id"]
        },
    )


async def describe_layer(conn: Connection, asset_id: str) -> None:
    await conn.execute(
        """INSERT INTO dagapp.layer_metadata (asset_id, data_type, display_name)
           SELECT asset_id, data_type, 'Layer' FROM dagapp.geospatial_assets WHERE asset_id = $1
           ON CONFLICT DO NOTHING""",
        [asset_id],
    )


async def move_job(conn: Connection, job_id: int, status: str) -> None:
    """Write the node's output and the job's status in one transaction, as an owner does."""
    async with conn.transaction():
        if status == "completed":
            await conn.execute(
                """UPDATE dagapp.dag_node_states SET status = 'completed', completed_at = clock_timestamp(),
                       output = jsonb_build_object('blob_path', 'silver/' || job_id, 'table_name', 'geo.' || job_id,
                           'external_blob_path', 'public/' || job_id)
                   WHERE job_id = $1 AND node_id = 'work'
                       AND (SELECT status FROM dagapp.dag_jobs WHERE job_id = $1) = 'running'""",
                [job_id],
            )
        moved = await conn.execute(
            """UPDATE dagapp.dag_jobs SET status = $2::text::dagapp.job_status,
                   started_at = coalesce(started_at, clock_timestamp()),
                   completed_at = CASE WHEN $2::text <> 'running' THEN clock_timestamp() END,
                   error_message = CASE WHEN $2::text = 'failed' THEN 'no such file' END
               WHERE job_id = $1 AND CASE $2::text WHEN 'running' THEN status IN ('pending', 'failed')
                   WHEN 'cancelled' THEN status IN ('pending', 'running') ELSE status = 'running' END""",
            [job_id, status],
        )
    if moved.rowcount != 1:
        raise Refused("IllegalMove")


@asynccontextmanager
async def connections(dsn: str) -> AsyncIterator[list[Connection]]:
    """One connection per concurrent operation, and one that reads."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(opened(dsn, application="test")) for _ in range(AT_ONCE + 1)]
