"""Copy the catalogue to pgSTAC, for programs that read it there."""

from typing import Any

from dagmaster.asset_handlers.catalogue_rows import CopyParams, read_collections, read_items
from dagmaster.handlers.contract import HandlerContext, Permanent, pool_of
from dagmaster.handlers.registry import handler
from dagmaster.store.pgstac import (
    has_pgstac,
    own_collections,
    put_collections,
    put_items,
    remove_other_items,
    use_pgstac,
)

NO_PGSTAC = "the database does not have pgSTAC; an administrator can install it with `pypgstac migrate`"


@handler("sync_pgstac", params=CopyParams, isolation="thread")
async def sync_pgstac(ctx: HandlerContext, params: CopyParams) -> dict[str, Any]:
    """Synchronise pgSTAC with the items that the audience may see, in one transaction.

    Other collections are not touched. pgSTAC cannot store items without a geometry; they are counted as skipped.
    """
    async with pool_of(ctx).store_connection() as conn, conn.transaction():
        if not await has_pgstac(conn):
            raise Permanent(NO_PGSTAC)
        await use_pgstac(conn)
        collections = await read_collections(conn, params)
        await put_collections(conn, collections)
        items: set[tuple[str, str]] = set()
        skipped = 0
        async for page in read_items(conn, params):
            located = [item for item in page if item["geometry"] is not None]
            if located:
                await put_items(conn, located)
            items |= {(item["collection"], item["id"]) for item in located}
            skipped += len(page) - len(located)
            ctx.progress(len(items), None, "items copied")
        removed = await remove_other_items(conn, await own_collections(conn), items)
    return {"collections": len(collections), "items": len(items), "removed": len(removed), "skipped": skipped}
