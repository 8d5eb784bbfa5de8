"""Export the catalogue as one stac-geoparquet file, which can be searched without a server.

Load it with `DAGMASTER_HANDLERS=dagmaster.asset_handlers.stac_geoparquet`; it needs the extra `stac`.
"""

import asyncio
import shutil
from hashlib import file_digest
from pathlib import Path
from typing import Any
from uuid import uuid4

import rustac

from dagmaster.asset_handlers.catalogue_rows import CopyParams, read_items
from dagmaster.handlers.contract import HandlerContext, Permanent, pool_of
from dagmaster.handlers.geo_task import invalid_is_permanent, open_zones
from dagmaster.handlers.registry import handler
from dagmaster.storage import Storage

# The library keeps all items in memory: 20,000 took 3 seconds.
MAX_ITEMS = 100_000


class ExportParams(CopyParams):
    target: str = "external/catalogue.parquet"


@handler("export_stac_geoparquet", params=ExportParams, isolation="thread")
async def export_stac_geoparquet(ctx: HandlerContext, params: ExportParams) -> dict[str, Any]:
    """Write the items that the audience may see to a file of the storage, which is replaced atomically."""
    items: list[dict[str, Any]] = []
    async with pool_of(ctx).store_connection() as conn:
        async for page in read_items(conn, params):
            items += page
            if len(items) > MAX_ITEMS:
                raise Permanent(f"the catalogue has more than {MAX_ITEMS} items for this audience")
    if not items:
        raise Permanent("the catalogue has no items for this audience")
    with invalid_is_permanent():
        return {"items": len(items), **await _store(ctx, open_zones(), items, params.target)}


async def _store(ctx: HandlerContext, storage: Storage, items: list[dict[str, Any]], target: str) -> dict[str, Any]:
    storage.locate(target)
    local: Path = storage.local_path(f"mount/{ctx.job_id}/{uuid4().hex}/catalogue.parquet")
    await asyncio.to_thread(local.parent.mkdir, parents=True)
    try:
        await rustac.write(str(local), items)
        with local.open("rb") as file:
            checksum = file_digest(file, "sha256").hexdigest()
        copied = await storage.copy(str(local), target)
        if copied.sha256 != checksum:
            raise RuntimeError(f"the copy at {copied.reference} differs from the file that was written")
        return {"path": copied.reference, "size_bytes": copied.size_bytes, "sha256": copied.sha256}
    finally:
        shutil.rmtree(local.parent)
