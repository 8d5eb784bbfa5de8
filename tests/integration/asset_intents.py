"""What could be done next in a world of assets: lists of operations from which a number picks one.

The number is drawn before the world is known: what is drawn next never depends on who has won a race.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from asset_invariants import UNFINISHED
from asset_model import (
    Asset,
    Decide,
    Export,
    MoveJob,
    Operation,
    ProcessAgain,
    Publish,
    Submit,
    Unpublish,
    Version,
    World,
)

from dagmaster.model.asset import ClearanceState, ExposureMode
from dagmaster.service.asset_contract import Approve, Clear, DeleteAsset, DeleteVersion, Expose, Reject, Reprocess

MOVES = {
    "pending": ("running", "running", "running", "cancelled"),
    "running": ("completed", "completed", "completed", "failed", "cancelled"),
    "failed": ("running",),
}
LEVELS = (None, ClearanceState.OUO, ClearanceState.OUO, ClearanceState.PUBLIC)


@dataclass(frozen=True)
class Sensible:
    """An operation that can succeed now."""

    pick: int
    asset: str = "a"


@dataclass(frozen=True)
class Anything:
    """Any operation, valid or not."""

    pick: int
    asset: str = "a"


@dataclass(frozen=True)
class Quarrel:
    """Operations on one version: its jobs, including former ones, and decisions on it."""

    pick: int
    asset: str = "a"
    age: int = 0


@dataclass(frozen=True)
class Delete:
    """Delete the whole asset; no operation on it can follow."""

    asset: str = "b"


Intent = Sensible | Anything | Quarrel | Delete


def resolve(world: World, intent: Intent) -> Operation:
    asset = world.assets.get(intent.asset, Asset())
    match intent:
        case Sensible(pick, name):
            choices = list(_sensible(world, name, asset)) or [Submit(name)]
        case Anything(pick, name):
            choices = list(_anything(world, name, asset))
        case Quarrel(pick, name, age):
            choices = list(_quarrel(world, name, asset, max(0, asset.next_ordinal - 1 - age)))
        case Delete(name):
            return Decide(name, DeleteAsset())
    return choices[pick % len(choices)]


def _sensible(world: World, name: str, asset: Asset) -> Iterator[Operation]:
    """Job moves are more frequent than decisions."""
    live = {ordinal: version for ordinal, version in asset.versions.items() if not version.is_deleted}
    unresolved = {ordinal: version for ordinal, version in live.items() if version.is_unresolved}
    if not unresolved:
        yield from [Submit(name)] * 4
    if asset.latest is not None:
        yield from (Publish(name), Publish(name), Unpublish(name))
    for version in live.values():
        for job_id in (version.job_id, version.export_job_id):
            yield from _moves(world, [job_id] if job_id is not None else [])
    for ordinal, version in unresolved.items():
        yield from _reviews(name, ordinal, version)
    for ordinal in sorted(live)[-2:]:
        yield from (Decide(name, DeleteVersion(ordinal)), ProcessAgain(name, Reprocess(ordinal)))


def _reviews(name: str, ordinal: int, version: Version) -> Iterator[Operation]:
    if version.approval == "rejected" or version.processing == "failed":
        yield from (Submit(name, resubmit=True), ProcessAgain(name, Reprocess(ordinal, resubmits=True)))
    if (version.approval, version.processing) == ("pending_review", "completed"):
        yield from (Decide(name, Approve(ordinal, level)) for level in LEVELS)
    if version.approval == "pending_review":
        yield Decide(name, Reject("blurred", ordinal))


def _anything(world: World, name: str, asset: Asset) -> Iterator[Operation]:
    yield from (Submit(name), Submit(name, resubmit=True))
    yield from (Decide(name, Clear(level)) for level in (ClearanceState.OUO, ClearanceState.PUBLIC))
    yield from (Decide(name, Expose(mode)) for mode in ExposureMode)
    yield from (Publish(name), Unpublish(name))
    yield from _moves(world, sorted(world.jobs)[-3:])
    yield from (Decide(name, Approve()), Decide(name, Reject("blurred")))
    for ordinal in range(max(0, asset.next_ordinal - 3), asset.next_ordinal + 2):
        yield from (Decide(name, Approve(ordinal, level)) for level in (None, ClearanceState.OUO))
        yield from (ProcessAgain(name, Reprocess(ordinal, resubmits=resubmits)) for resubmits in (False, True))
        yield from (Decide(name, Reject("blurred", ordinal)), Decide(name, DeleteVersion(ordinal)))
        yield Export(name, ordinal)


def _quarrel(world: World, name: str, asset: Asset, ordinal: int) -> Iterator[Operation]:
    jobs = [job_id for job_id, job in sorted(world.jobs.items()) if (job.asset, job.ordinal) == (name, ordinal)]
    yield from _moves(world, [job_id for job_id in jobs if world.jobs[job_id].status in (*UNFINISHED, "failed")])
    yield from (ProcessAgain(name, Reprocess(ordinal, resubmits=resubmits)) for resubmits in (False, True))
    version = asset.versions.get(ordinal)
    if version is not None and version.processing == "failed":
        return
    yield from (Submit(name), Submit(name, resubmit=True))
    yield Decide(name, Approve(ordinal, ClearanceState.OUO))
    yield from (Decide(name, Reject("blurred", ordinal)), Decide(name, DeleteVersion(ordinal)))


def _moves(world: World, job_ids: Sequence[int]) -> Iterator[Operation]:
    for job_id in job_ids:
        yield from (MoveJob(job_id, status) for status in MOVES.get(world.jobs[job_id].status, ()))
