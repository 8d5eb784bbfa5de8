"""What assets are expected to do, as a pure model: one operation at a time, no database."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from dagmaster.service.asset_contract import (
    Approve,
    AssetCommand,
    Clear,
    DeleteAsset,
    DeleteVersion,
    Expose,
    Reject,
    Reprocess,
)

LEVELS = ("uncleared", "ouo", "public")
CLEARANCE_EVENTS = {"ouo": "asset_cleared", "public": "asset_made_public"}
JOB_MOVES = {
    "running": {"pending", "failed"},
    "completed": {"running"},
    "failed": {"running"},
    "cancelled": {"pending", "running"},
}
PROCESSING = {"running": "processing", "completed": "completed", "failed": "failed", "cancelled": "failed"}
PROCESSING_EVENTS = {
    "processing": "processing_started",
    "completed": "processing_completed",
    "failed": "processing_failed",
}


@dataclass(frozen=True)
class Submit:
    asset: str
    resubmit: bool = False


@dataclass(frozen=True)
class Decide:
    asset: str
    command: AssetCommand


@dataclass(frozen=True)
class ProcessAgain:
    asset: str
    command: Reprocess


@dataclass(frozen=True)
class Export:
    asset: str
    ordinal: int


@dataclass(frozen=True)
class MoveJob:
    """An owner starts, ends or reopens a job."""

    job_id: int
    status: str


@dataclass(frozen=True)
class Publish:
    """Publish the layer of the asset. That it shows the latest version is an invariant, not part of the world."""

    asset: str


@dataclass(frozen=True)
class Unpublish:
    asset: str


Operation = Submit | Decide | ProcessAgain | Export | MoveJob | Publish | Unpublish


@dataclass(frozen=True)
class Version:
    approval: str = "pending_review"
    processing: str = "queued"
    revision: int = 1
    job_id: int | None = None
    blob_path: str | None = None
    export_job_id: int | None = None
    external_blob_path: str | None = None
    is_deleted: bool = False

    @property
    def is_unresolved(self) -> bool:
        return self.approval != "approved" and not self.is_deleted


@dataclass(frozen=True)
class Asset:
    clearance: str = "uncleared"
    exposure: str = "latest_only"
    latest: int | None = None
    next_ordinal: int = 0
    is_deleted: bool = False
    versions: Mapping[int, Version] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    asset: str
    ordinal: int
    status: str = "pending"


@dataclass(frozen=True)
class Event:
    asset: str
    ordinal: int | None
    type: str
    actor: str | None = None
    job_id: int | None = None


@dataclass(frozen=True)
class World:
    """`requests` are the statuses of requests by their jobs: reviews and exports have none."""

    assets: Mapping[str, Asset] = field(default_factory=dict)
    jobs: Mapping[int, Job] = field(default_factory=dict)
    requests: Mapping[int, str] = field(default_factory=dict)
    events: Counter[Event] = field(default_factory=Counter)


class Refused(Exception):
    """The message is the name of the error."""


def apply(world: World, operation: Operation, job_id: int | None, actor: str) -> World:
    """Return the next world; `job_id` is the job that the operation submits, if any. Raises Refused."""
    return Step(world, job_id, actor).apply(operation)


@dataclass
class Step:
    world: World
    job_id: int | None
    actor: str

    def apply(self, operation: Operation) -> World:
        match operation:
            case Submit(name, is_resubmission):
                self._submit(name, is_resubmission)
            case Decide(name, command):
                self._decide(name, command)
            case ProcessAgain(name, command):
                ordinal, version = self._find(name, command.ordinal)
                self._process_again(name, ordinal, version, is_resubmission=command.resubmits)
            case Export(name, ordinal):
                _, version = self._find(name, ordinal)
                if self._live(name).clearance != "public" or version.approval != "approved":
                    raise Refused("Conflict")
                self._export(name, ordinal)
            case MoveJob(moved, status):
                self._move(moved, status)
            case Publish(name):
                if self._live(name).latest is None:
                    raise Refused("Conflict")
            case Unpublish(name):
                if name not in self.world.assets:
                    raise Refused("UnknownAsset")
            case _:
                assert_never(operation)
        return self.world

    def _submit(self, name: str, is_resubmission: bool) -> None:
        is_new = name not in self.world.assets
        asset = self.world.assets.get(name, Asset())
        unresolved = [(ordinal, version) for ordinal, version in asset.versions.items() if version.is_unresolved]
        if asset.is_deleted or bool(unresolved) is not is_resubmission:
            raise Refused("Conflict")
        if is_resubmission:
            self._process_again(name, *unresolved[0], is_resubmission=True)
            return
        ordinal = asset.next_ordinal
        versions = {**asset.versions, ordinal: Version(job_id=self.job_id)}
        self._set(name, replace(asset, next_ordinal=ordinal + 1, versions=versions))
        if is_new:
            self._note(name, None, "asset_created")
        self._add_job(name, ordinal, has_request=True)
        self._note(name, ordinal, "version_submitted", self.job_id)

    def _process_again(self, name: str, ordinal: int, version: Version, *, is_resubmission: bool) -> None:
        has_failed = version.processing == "failed"
        if is_resubmission:
            is_refused = version.approval != "rejected" and not (version.approval == "pending_review" and has_failed)
        else:
            is_refused = version.processing not in ("completed", "failed")
        if is_refused:
            raise Refused("Conflict")
        self._set_version(
            name,
            ordinal,
            processing="processing",
            revision=version.revision + 1,
            job_id=self.job_id,
            approval="pending_review" if is_resubmission else version.approval,
        )
        self._add_job(name, ordinal, has_request=True)
        self._note(name, ordinal, "version_resubmitted" if is_resubmission else "version_reprocessed", self.job_id)

    def _decide(self, name: str, command: AssetCommand) -> None:
        asset = self._live(name)
        match command:
            case Approve(ordinal, level):
                ordinal, version = self._find(name, ordinal)
                is_cleared = level is not None or asset.clearance != "uncleared"
                if (version.approval, version.processing, is_cleared) != ("pending_review", "completed", True):
                    raise Refused("Conflict")
                self._clear(name, level or asset.clearance)
                self._set_version(name, ordinal, approval="approved")
                self._note(name, ordinal, "version_approved")
                if self._live(name).clearance == "public":
                    self._export(name, ordinal)
            case Reject(_, ordinal):
                ordinal, version = self._find(name, ordinal)
                if version.approval != "pending_review":
                    raise Refused("Conflict")
                self._set_version(name, ordinal, approval="rejected")
                self._note(name, ordinal, "version_rejected")
            case Clear(level):
                self._clear(name, level)
                is_now_public = asset.clearance != "public" and self._live(name).clearance == "public"
                if is_now_public and asset.latest is not None:
                    self._export(name, asset.latest)
            case Expose(mode):
                if asset.exposure != mode:
                    self._set(name, replace(asset, exposure=str(mode)))
                    self._note(name, None, "exposure_changed")
            case DeleteVersion(ordinal):
                ordinal, _ = self._find(name, ordinal)
                self._set_version(name, ordinal, is_deleted=True)
                self._note(name, ordinal, "version_deleted")
            case DeleteAsset():
                self._set(name, replace(asset, is_deleted=True))
                self._note(name, None, "asset_deleted")
            case _:
                assert_never(command)

    def _clear(self, name: str, level: str) -> None:
        asset = self._live(name)
        reached = LEVELS.index(asset.clearance)
        for step in LEVELS[reached + 1 : LEVELS.index(level) + 1]:
            self._set(name, replace(self._live(name), clearance=step))
            self._note(name, None, CLEARANCE_EVENTS[step])

    def _export(self, name: str, ordinal: int) -> None:
        self._set_version(name, ordinal, export_job_id=self.job_id)
        self._add_job(name, ordinal, has_request=False)
        self._note(name, ordinal, "export_queued", self.job_id)

    def _move(self, job_id: int, status: str) -> None:
        job = self.world.jobs[job_id]
        if job.status not in JOB_MOVES[status]:
            raise Refused("IllegalMove")
        self.world = replace(self.world, jobs={**self.world.jobs, job_id: replace(job, status=status)})
        if job_id in self.world.requests:
            self.world = replace(self.world, requests={**self.world.requests, job_id: status})
        self.actor, self.job_id = "", job_id
        version = self.world.assets[job.asset].versions[job.ordinal]
        if version.job_id == job_id and not version.is_deleted:
            self._move_version(job, version, PROCESSING[status])
        elif version.export_job_id == job_id and status != "running":
            if status == "completed":
                self._set_version(job.asset, job.ordinal, external_blob_path=f"public/{job_id}")
            ending = "completed" if status == "completed" else "failed"
            self._note(job.asset, job.ordinal, f"export_{ending}", job_id)

    def _move_version(self, job: Job, version: Version, processing: str) -> None:
        sources = ("queued", "failed") if processing == "processing" else ("queued", "processing")
        if version.processing not in sources:
            return
        blob_path = f"silver/{self.job_id}" if processing == "completed" else version.blob_path
        self._set_version(job.asset, job.ordinal, processing=processing, blob_path=blob_path)
        self._note(job.asset, job.ordinal, PROCESSING_EVENTS[processing], self.job_id)

    def _live(self, name: str) -> Asset:
        asset = self.world.assets.get(name)
        if asset is None or asset.is_deleted:
            raise Refused("UnknownAsset")
        return asset

    def _find(self, name: str, ordinal: int | None) -> tuple[int, Version]:
        """Find a version by its ordinal, or the unresolved one."""
        for known, version in self._live(name).versions.items():
            is_meant = version.is_unresolved if ordinal is None else known == ordinal
            if is_meant and not version.is_deleted:
                return known, version
        raise Refused("UnknownVersion")

    def _set(self, name: str, asset: Asset) -> None:
        approved = [
            ordinal
            for ordinal, version in asset.versions.items()
            if version.approval == "approved" and not version.is_deleted
        ]
        asset = replace(asset, latest=max(approved, default=None))
        self.world = replace(self.world, assets={**self.world.assets, name: asset})

    def _set_version(self, name: str, ordinal: int, **columns: object) -> None:
        asset = self.world.assets[name]
        changed = replace(asset.versions[ordinal], **columns)  # type: ignore[arg-type]
        self._set(name, replace(asset, versions={**asset.versions, ordinal: changed}))

    def _add_job(self, name: str, ordinal: int, *, has_request: bool) -> None:
        if self.job_id is None:
            raise Refused("NoJob")
        requests = {**self.world.requests, self.job_id: "pending"} if has_request else self.world.requests
        jobs = {**self.world.jobs, self.job_id: Job(name, ordinal)}
        self.world = replace(self.world, jobs=jobs, requests=requests)

    def _note(self, name: str, ordinal: int | None, event: str, job_id: int | None = None) -> None:
        entry = Event(name, ordinal, event, self.actor or None, job_id)
        self.world = replace(self.world, events=self.world.events + Counter([entry]))
