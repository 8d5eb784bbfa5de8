"""What must hold for assets after each round of operations: the round is linearizable and the invariants hold."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from asset_model import Asset, MoveJob, Operation, Refused, Version, World, apply

from dagmaster.assets import exposure
from dagmaster.errors import NotFound

UNFINISHED = ("pending", "running")


class Violation(AssertionError):
    """An invariant is broken."""


@dataclass(frozen=True)
class Attempt:
    """An operation and its outcome."""

    operation: Operation
    actor: str
    job_id: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class Seen:
    """The world as it is in the database, with the rows; `asked_to_stop` are the jobs that were asked to stop.

    `published` are the assets whose layer is published, `catalog` the versions that the catalogue shows.
    """

    world: World
    assets: Sequence[Any]
    versions: Sequence[Any]
    asked_to_stop: frozenset[int]
    published: frozenset[str]
    catalog: Mapping[str, int]


@dataclass
class Checks:
    """The checks of one world. `ids` maps the names of its assets to their ids."""

    ids: Mapping[str, str]
    last_revisions: dict[tuple[str, int], int] = field(default_factory=dict)
    reopened: set[int] = field(default_factory=set)

    def check(self, before: World, attempts: Sequence[Attempt], seen: Seen) -> None:
        explain(before, attempts, seen.world)
        self._check_invariants(before, seen)
        self._check_cancellations(before, attempts, seen)

    def _check_invariants(self, before: World, seen: Seen) -> None:
        after = seen.world
        for name, asset in after.assets.items():
            earlier = before.assets.get(name, Asset())
            expect(sum(version.is_unresolved for version in asset.versions.values()) <= 1, "two are unresolved", asset)
            approved = [
                ordinal
                for ordinal, version in asset.versions.items()
                if version.approval == "approved" and not version.is_deleted
            ]
            expect(asset.latest == max(approved, default=None), "latest is not the highest approved", asset)
            expect(asset.next_ordinal > max(asset.versions, default=-1), "an ordinal may be used again", asset)
            expect(asset.next_ordinal >= earlier.next_ordinal, "ordinals go back", asset)
            for ordinal, version in asset.versions.items():
                self._check_version(name, ordinal, version, after)
            self._check_exposure(name, asset, seen)
            is_published = name in seen.published
            expect(not is_published or asset.latest is not None, "a layer is left behind", (name, asset))
            expect(not is_published or not asset.is_deleted, "a layer outlives its asset", (name, asset))
            expected = asset.latest if is_published else None
            expect(
                seen.catalog.get(name) == expected,
                "the catalogue does not show the latest",
                (name, seen.catalog, asset),
            )
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
        if not version.is_deleted:  # Deleted rows do not change.
            expect(version.processing in agreeing, "a version and its job disagree", (name, ordinal, version, job))

    def _check_exposure(self, name: str, asset: Asset, seen: Seen) -> None:
        """What the public gets, according to the functions that decide it."""
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

    def _check_cancellations(self, before: World, attempts: Sequence[Attempt], seen: Seen) -> None:
        """A job that is no longer needed is asked to stop, unless it had failed and was reopened."""
        after = seen.world
        for attempt in attempts:
            match attempt:
                case Attempt(MoveJob(job_id, "running"), error=None) if before.jobs[job_id].status != "pending":
                    self.reopened.add(job_id)
        for job_id, job in after.jobs.items():
            asset = after.assets[job.asset]
            version = asset.versions[job.ordinal]
            is_processing = version.job_id == job_id or version.export_job_id == job_id
            is_gone = asset.is_deleted or version.is_deleted
            was_busy = before.jobs.get(job_id, job).status in UNFINISHED and job_id not in self.reopened
            if job.status in UNFINISHED and was_busy and is_gone and is_processing:
                expect(
                    job_id in seen.asked_to_stop,
                    "nobody cancels a job that is no longer needed",
                    (job_id, job, version),
                )


def explain(before: World, attempts: Sequence[Attempt], after: World) -> None:
    """Some sequential order of the operations has these outcomes and leads to this world."""
    ends = []
    for order in permutations(attempts):
        world = before
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
    lines = "\n".join(f"  {attempt}" for attempt in attempts)
    raise Violation(f"no order explains\n{lines}\ndifferences: {ends[:2]}")


def expect(holds: bool, claim: str, evidence: object) -> None:
    if not holds:
        raise Violation(f"{claim}: {evidence}")


def differences(expected: World, actual: World) -> Iterator[str]:
    for name in ("assets", "jobs", "requests", "events"):
        left, right = getattr(expected, name), getattr(actual, name)
        for key in {*left, *right}:
            if left.get(key) != right.get(key):
                yield f"{name} {key}: expected {left.get(key)}, found {right.get(key)}"
