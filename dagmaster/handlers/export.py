"""Copy what is approved and public to where the public finds it."""

from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, Field

from dagmaster.handlers.contract import HandlerContext, Permanent
from dagmaster.handlers.registry import handler
from dagmaster.settings import load_settings
from dagmaster.storage import ReferenceRefused, open_storage


class Export(BaseModel):
    """`blob_path` is a file of the storage, as a version has it."""

    asset_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    version_ordinal: Annotated[int, Field(ge=0)]
    blob_path: Annotated[str, Field(min_length=1)]


@handler("adf_export", params=Export)
async def adf_export(ctx: HandlerContext, params: Export) -> dict[str, Any]:
    """Copy the file of a version to the zone `external`, with its checksum. An interrupted copy continues."""
    storage = open_storage(load_settings())
    try:
        name = PurePosixPath(storage.locate(params.blob_path).reference).name
        target = f"external/{params.asset_id}/{params.version_ordinal}/{name}"
        copied = await storage.copy(
            params.blob_path, target, lambda done, total: ctx.progress(done, total, "bytes copied")
        )
    except ReferenceRefused as error:
        raise Permanent(str(error)) from error
    return {"external_blob_path": copied.reference, "size_bytes": copied.size_bytes, "sha256": copied.sha256}
