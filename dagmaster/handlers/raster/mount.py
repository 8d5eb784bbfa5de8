"""The zone mount, where rasters are processed: copies of files, and the work folder of a task."""

import shutil
from contextlib import suppress
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import uuid4

from dagmaster.handlers.contract import HandlerContext
from dagmaster.handlers.geo_task import JobFiles, Params, Reference, invalid_is_permanent, open_zones
from dagmaster.handlers.registry import handler
from dagmaster.storage import Storage


def mount_reference(ctx: HandlerContext, reference: str) -> str:
    """Where this job copies a file to. Files of the same name from different folders do not collide."""
    digest = sha256(reference.encode()).hexdigest()[:16]
    return f"mount/{ctx.job_id}/{digest}/{PurePosixPath(reference).name}"


def work_folder(storage: Storage, ctx: HandlerContext) -> Path:
    """A folder for this attempt in the zone mount, with the files of an earlier attempt at the node.

    It is taken over by renaming: an attempt that is wrongly believed dead can no longer write to it.
    """
    place = storage.local_path(f"mount/{ctx.job_id}/{ctx.node_id}.work")
    place.mkdir(parents=True, exist_ok=True)
    own = place / uuid4().hex
    for left in sorted(place.iterdir()):
        try:
            return left.rename(own)
        except FileNotFoundError:
            continue  # Another attempt has taken it over.
    own.mkdir()
    return own


def remove_work_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    with suppress(OSError):  # Another attempt may be using it.
        folder.parent.rmdir()


class CopyParams(Params):
    """`target` is a file of the zone mount; by default the source's name below the id of the job."""

    source: Reference
    target: str | None = None


@handler("raster.blob_to_mount", params=CopyParams, isolation="thread")
async def blob_to_mount(ctx: HandlerContext, params: CopyParams) -> dict[str, Any]:
    """Copy a file of the storage to the zone mount, with its checksum. An interrupted copy is resumed."""
    storage = open_zones()
    with invalid_is_permanent():
        source = storage.locate(params.source)
        target = params.target or mount_reference(ctx, source.reference)
        storage.local_path(target)
        copied = await storage.copy(
            params.source, target, lambda done, total: ctx.progress(done, total, "bytes copied")
        )
    return {
        "path": copied.reference,
        "source": source.reference,
        "size_bytes": copied.size_bytes,
        "sha256": copied.sha256,
        "resumed_at": copied.resumed_at,
    }


@handler("raster.clean_mount")
def clean_mount(ctx: HandlerContext) -> dict[str, int]:
    """Remove the files of this job from the zone mount."""
    return JobFiles(ctx).remove()
