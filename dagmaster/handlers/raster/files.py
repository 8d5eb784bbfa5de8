"""Copy files to the zone mount, where rasters are processed, and remove them."""

import shutil
from typing import Any

from dagmaster.handlers.contract import HandlerContext
from dagmaster.handlers.geo_task import Params, Reference, refusing
from dagmaster.handlers.raster.common import mount_reference, open_zones
from dagmaster.handlers.registry import handler


class CopyParams(Params):
    """`target` is a file of the zone mount; by default the source's name below the id of the job."""

    source: Reference
    target: str | None = None


@handler("raster.blob_to_mount", params=CopyParams, isolation="thread")
async def blob_to_mount(ctx: HandlerContext, params: CopyParams) -> dict[str, Any]:
    """Copy a file of the storage to the zone mount, with its checksum. An interrupted copy is resumed."""
    storage = open_zones()
    with refusing():
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
    folder = open_zones().local_path(f"mount/{ctx.job_id}")
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    if folder.is_dir():
        shutil.rmtree(folder)
    return {"removed_files": len(sizes), "removed_bytes": sum(sizes)}
