"""Random operations on assets, several at once, checked against the model and against invariants after each round.

Operations that run at once must have the effect of some order of them, one after the other. Gates make them meet: a
round may begin with the rows of assets or versions locked, so that operations read before, and write after, others.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import permutations
from random import Random
from typing import Any

from asset_model import (
    Asset,
    Decide,
    Event,
    Export,
    Job,
    MoveJob,
    Operation,
    ProcessAgain,
    Refused,
    Submit,
    Version,
    World,
    apply,
)
from fleet import graph, task

from dagmaster.assets import exposure
from dagmaster.errors import DagmasterError, NotFound, UnknownWorkflow
from dagmaster.model.asset import ClearanceState, DataType, ExposureMode, asset_id_of
from dagmaster.model.workflow import Workflow
from dagmaster.service import asset_submission, assets
from dagmaster.service.asset_contract import (
    Approve,
    AssetSubmission,
    Clear,
    DeleteAsset,
    DeleteVersion,
    Expose,
    Reject,
    Reprocess,
)
from dagmaster.service.context import ServiceContext
from dagmaster.service.contract import SubmitRequest
from dagmaster.service.definitions import Definitions
from dagmaster.service.fleet import KnownFleet
from dagmaster.settings import load_settings
from dagmaster.store.connect import Connection, opened

AT_ONCE = 4
LATE = 40  # Rounds, before an asset may be deleted.
PLATFORM = "ddh"
GATES = {
    "none": None,
    "assets": "SELECT FROM dagapp.geospatial_assets WHERE asset_id = ANY($1) FOR NO KEY UPDATE",
    "versions": "SELECT FROM dagapp.asset_versions WHERE asset_id = ANY($1) FOR NO KEY UPDATE",
}
UNFINISHED = ("pending", "running")
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
        'events', (SELECT coalesce(jsonb_agg(e), '[]') FROM dagapp.asset_events e WHERE asset_id = ANY($1)),
        'requests', (SELECT coalesce(jsonb_agg(r), '[]') FROM dagapp.dag_api_requests r WHERE asset_id = ANY($1)),
        'jobs', (SELECT coalesce(jsonb_agg(j), '[]') FROM jobs j),
        'told', (SELECT coalesce(jsonb_agg(m.job_id), '[]') FROM dagapp.dag_mailbox m JOIN jobs USING (job_id)
                 WHERE m.kind = 'cancel')
    ) AS seen"""


class Violation(AssertionError):
    """What must never happen has happened."""


def find_workflow(name: str) -> Workflow:
    if name not in WORKFLOWS:
        raise UnknownWorkflow(f"no workflow is named {name!r}")
    return WORKFLOWS[name]


async def nobody(_: Connection) -> KnownFleet:
    return KnownFleet(False, ())


@dataclass(frozen=True)
class Attempt:
    """An operation and how it went."""

    operation: Operation
    actor: str
    job_id: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class Seen:
    """The world as it is in the database, with the rows; `told` are the jobs that were asked to stop."""

    world: World
    assets: Sequence[Any]
    versions: Sequence[Any]
    told: frozenset[int]


@dataclass
class Site:
    """One world in a database that others use too: its assets have references of their own."""

    name: str
    rng: Random
    conns: Sequence[Connection]
    observer: Connection
    assets: tuple[str, ...] = ("a", "b")
    world: World = field(default_factory=World)
    last_revisions: dict[tuple[str, int], int] = field(default_factory=dict)
    reopened: set[int] = field(default_factory=set)
    rounds: int = 0

    def __post_init__(self) -> None:
        self.settings = load_settings()
        self.definitions = Definitions(self.settings, {}, find_workflow)
        self.ids = {name: asset_id_of(PLATFORM, self.refs(name)) for name in self.assets}
        self.names = {asset_id: name for name, asset_id in self.ids.items()}

    def refs(self, name: str) -> dict[str, str]:
        return {"dataset_id": f"{self.name}-{name}", "resource_id": "r"}

    @classmethod
    def of(cls, conns: Sequence[Connection], name: str, seed: int = 0) -> "Site":
        """The last of the connections is to look."""
        return cls(name, Random(seed), conns[:-1], conns[-1])

    # One round.

    async def play(self, rounds: int) -> None:
        for _ in range(rounds):
            choose = self.rng.choice([self._choose, self._quarrel(self.assets[0])])
            operations = [choose() for _ in range(self.rng.choice([1, 1, 2, 3, AT_ONCE]))]
            await self.round(*operations, gate=self.rng.choice(list(GATES)) if len(operations) > 1 else "none")

    async def round(self, *operations: Operation, gate: str = "none") -> list[Attempt]:
        self.rounds += 1
        attempts = await self._run(operations, gate)
        seen = await self.read()
        self._explain(attempts, seen.world, gate)
        self._check_invariants(seen)
        self._check_cancellations(seen, attempts)
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
        """Until it has ended or waits for a lock."""
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
        """The job that it submitted, if any."""
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
            case MoveJob(job_id, status):
                await move_job(context.conn, job_id, status)
                return None

    # What to do.

    def _choose(self) -> Operation:
        """Most often what makes sense, and often enough what does not."""
        rng = self.rng
        name = rng.choices(self.assets, [5, 1])[0]
        asset = self.world.assets.get(name, Asset())
        if rng.random() < 0.7:
            return rng.choice(list(self._sensible(name, asset)))
        ordinal = rng.randrange(asset.next_ordinal + 2)
        jobs = list(self.world.jobs)
        choices: list[Operation] = [
            Submit(name),
            Submit(name, resubmit=True),
            Decide(name, Approve(rng.choice([None, ordinal]), rng.choice([None, ClearanceState.OUO]))),
            Decide(name, Reject("blurred", rng.choice([None, ordinal]))),
            Decide(name, Clear(rng.choice([ClearanceState.OUO, ClearanceState.PUBLIC]))),
            Decide(name, Expose(rng.choice(list(ExposureMode)))),
            Decide(name, DeleteVersion(ordinal)),
            ProcessAgain(name, Reprocess(ordinal, resubmits=rng.random() < 0.5)),
            Export(name, ordinal),
            *[MoveJob(job_id, self._choose_move(job_id)) for job_id in rng.sample(jobs, min(3, len(jobs)))],
            *[Decide(name, DeleteAsset())] * (self.rounds > LATE),
        ]
        return rng.choice(choices)

    def _quarrel(self, name: str) -> Callable[[], Operation]:
        """About one version of the asset: its jobs, those that it no longer has too, and whoever decides on it."""
        asset = self.world.assets.get(name, Asset())
        ordinal = max(0, asset.next_ordinal - self.rng.choice([1, 1, 1, 2]))
        jobs = [job_id for job_id, job in self.world.jobs.items() if (job.asset, job.ordinal) == (name, ordinal)]
        live = [job_id for job_id in jobs if self.world.jobs[job_id].status in (*UNFINISHED, "failed")]
        decisions: list[Operation] = [
            Submit(name, resubmit=True),
            Submit(name),
            Decide(name, Approve(ordinal, ClearanceState.OUO)),
            Decide(name, Reject("blurred", ordinal)),
            Decide(name, DeleteVersion(ordinal)),
            ProcessAgain(name, Reprocess(ordinal)),
            ProcessAgain(name, Reprocess(ordinal, resubmits=True)),
        ]
        if asset.versions and asset.versions[ordinal].processing == "failed":
            decisions = [decision for decision in decisions if isinstance(decision, ProcessAgain)]

        def choose() -> Operation:
            if live and self.rng.random() < 0.6:
                job_id = self.rng.choice(live)
                return MoveJob(job_id, self._choose_move(job_id))
            return self.rng.choice(decisions)

        return choose

    def _sensible(self, name: str, asset: Asset) -> Iterator[Operation]:
        """What can succeed now. Jobs are moved more often than anything is decided."""
        live = {ordinal: version for ordinal, version in asset.versions.items() if not version.is_deleted}
        unresolved = [ordinal for ordinal, version in live.items() if version.is_unresolved]
        for version in live.values():
            for job_id in (version.job_id, version.export_job_id):
                if job_id is not None and self.world.jobs[job_id].status not in ("completed", "cancelled"):
                    yield from [MoveJob(job_id, self._choose_move(job_id))] * 4
        if not unresolved:
            yield from [Submit(name)] * 4
        for ordinal in unresolved:
            version = live[ordinal]
            if version.approval == "rejected" or version.processing == "failed":
                yield from (Submit(name, resubmit=True), ProcessAgain(name, Reprocess(ordinal, resubmits=True)))
            if version.approval == "pending_review":
                level = self.rng.choice([None, ClearanceState.OUO, ClearanceState.OUO, ClearanceState.PUBLIC])
                yield from [Decide(name, Approve(ordinal, level))] * 4
                yield Decide(name, Reject("blurred", ordinal))
        for ordinal in self.rng.sample(sorted(live), min(2, len(live))):
            yield from (Decide(name, DeleteVersion(ordinal)), ProcessAgain(name, Reprocess(ordinal)))

    def _choose_move(self, job_id: int) -> str:
        status = self.world.jobs[job_id].status
        if status == "pending":
            return self.rng.choice(["running", "running", "running", "cancelled"])
        if status == "failed":
            return "running"
        return self.rng.choices(["completed", "failed", "cancelled"], [6, 4, 1])[0]

    # What must hold.

    def _explain(self, attempts: Sequence[Attempt], after: World, gate: str) -> None:
        """Some order of the operations, one after the other, has these outcomes and leads to this world."""
        ends = []
        for order in permutations(attempts):
            world = self.world
            for attempt in order:
                try:
                    world, error = apply(world, attempt.operation, attempt.job_id, attempt.actor), None
                except Refused as refused:
                    error = str(refused)
                if error != attempt.error:
                    break
            else:
                if world == after:
                    return
                ends.append(list(differences(world, after)))
        told = "\n".join(f"  {attempt}" for attempt in attempts)
        raise Violation(f"round {self.rounds}, gate {gate}: no order explains\n{told}\ndifferences: {ends[:2]}")

    def _check_invariants(self, seen: Seen) -> None:
        after = seen.world
        for name, asset in after.assets.items():
            before = self.world.assets.get(name, Asset())
            expect(sum(version.is_unresolved for version in asset.versions.values()) <= 1, "two are unresolved", asset)
            approved = [
                ordinal
                for ordinal, version in asset.versions.items()
                if version.approval == "approved" and not version.is_deleted
            ]
            expect(asset.latest == max(approved, default=None), "latest is not the highest approved", asset)
            expect(asset.next_ordinal > max(asset.versions, default=-1), "an ordinal may be used again", asset)
            expect(asset.next_ordinal >= before.next_ordinal, "ordinals go back", asset)
            for ordinal, version in asset.versions.items():
                self._check_version(name, ordinal, version, after)
            self._check_exposure(name, asset, seen)
        expect(all(status for status in after.requests.values()), "a request without outcome", after.requests)
        for job_id, status in after.requests.items():
            expect(after.jobs[job_id].status == status, "a request and its job disagree", (job_id, status))

    def _check_version(self, name: str, ordinal: int, version: Version, after: World) -> None:
        last = self.last_revisions.get((name, ordinal), 0)
        expect(version.revision >= last, "a revision goes back", (name, ordinal, version))
        self.last_revisions[name, ordinal] = version.revision
        assert version.job_id is not None
        job = after.jobs[version.job_id]
        agreeing = {
            "pending": ("queued", "processing"),
            "running": ("processing",),
            "completed": ("completed",),
            "failed": ("failed",),
            "cancelled": ("failed",),
        }[job.status]
        if not version.is_deleted:  # What is deleted stays as it was.
            expect(version.processing in agreeing, "a version and its job disagree", (name, ordinal, version, job))

    def _check_exposure(self, name: str, asset: Asset, seen: Seen) -> None:
        """What the public gets, by the functions that decide it."""
        [row] = [row for row in seen.assets if row["asset_id"] == self.ids[name]]
        rows = [row for row in seen.versions if row["asset_id"] == self.ids[name]]
        for requested in (None, *asset.versions):
            try:
                exposure.check_asset(row, exposure.Audience.PUBLIC)
                ordinal = exposure.select_ordinal(row, requested, exposure.Audience.PUBLIC)
                [version] = [version for version in rows if version["version_ordinal"] == ordinal]
                exposure.check_version(version, is_preview=False)
            except NotFound:
                continue
            served = asset.versions[ordinal]
            is_open = asset.clearance == "public" and not asset.is_deleted
            expect(is_open, "served to the public below public clearance", (name, asset))
            expect(served.approval == "approved" and not served.is_deleted, "served unapproved", (name, served))
            is_exposed = ordinal == asset.latest or asset.exposure == "all_versions"
            expect(is_exposed, "served although not exposed", (name, ordinal, asset))

    def _check_cancellations(self, seen: Seen, attempts: Sequence[Attempt]) -> None:
        """A job that nobody needs any more is told so, unless it had failed and somebody reopened it."""
        after = seen.world
        for attempt in attempts:
            match attempt:
                case Attempt(MoveJob(job_id, "running"), error=None) if self.world.jobs[job_id].status != "pending":
                    self.reopened.add(job_id)
        for job_id, job in after.jobs.items():
            asset = after.assets[job.asset]
            version = asset.versions[job.ordinal]
            is_processing = version.job_id == job_id or version.export_job_id == job_id
            is_gone = asset.is_deleted or version.is_deleted
            was_busy = self.world.jobs.get(job_id, job).status in UNFINISHED and job_id not in self.reopened
            if job.status in UNFINISHED and was_busy and is_gone and is_processing:
                expect(job_id in seen.told, "nobody cancels a job that is no longer needed", (job_id, job, version))

    # What is there.

    async def read(self) -> Seen:
        [row] = await (await self.observer.execute(EVERYTHING, [list(self.ids.values())])).fetchall()
        seen = row["seen"]
        world = World(
            assets={self.names[row["asset_id"]]: _asset(row, seen["versions"]) for row in seen["assets"]},
            jobs={
                row["job_id"]: Job(self.names[row["asset_id"]], row["version_ordinal"], row["status"])
                for row in seen["jobs"]
            },
            requests={row["job_id"]: row["status"] for row in seen["requests"]},
            events=Counter(_event(row, self.names[row["asset_id"]]) for row in seen["events"]),
        )
        return Seen(world, seen["assets"], seen["versions"], frozenset(seen["told"]))


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
            for version in versions
            if version["asset_id"] == row["asset_id"]
        },
    )


async def move_job(conn: Connection, job_id: int, status: str) -> None:
    """As its owner does it: the output of the node and the status of the job in one transaction."""
    async with conn.transaction():
        if status == "completed":
            await conn.execute(
                """UPDATE dagapp.dag_node_states SET status = 'completed', completed_at = clock_timestamp(),
                       output = jsonb_build_object('blob_path', 'silver/' || job_id,
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


def expect(holds: bool, what: str, shown: object) -> None:
    if not holds:
        raise Violation(f"{what}: {shown}")


def differences(expected: World, found: World) -> Iterator[str]:
    for name in ("assets", "jobs", "requests", "events"):
        left, right = getattr(expected, name), getattr(found, name)
        for key in {*left, *right}:
            if left.get(key) != right.get(key):
                yield f"{name} {key}: expected {left.get(key)}, found {right.get(key)}"


@asynccontextmanager
async def connections(dsn: str) -> AsyncIterator[list[Connection]]:
    """As many as operations run at once, and one to look."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(opened(dsn, application="test")) for _ in range(AT_ONCE + 1)]


async def play(dsn: str, seed: int, rounds: int, name: str = "world") -> None:
    async with connections(dsn) as conns:
        await Site.of(conns, f"{name}-{seed}", seed).play(rounds)
