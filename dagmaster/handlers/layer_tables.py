"""Drop the tables that failed and superseded jobs have left."""

import asyncio
from collections.abc import Sequence
from typing import Any

from dagmaster.geo.vector.postgis import Table
from dagmaster.geo.vector.table_owners import drop_table, list_owners
from dagmaster.handlers.contract import HandlerContext
from dagmaster.store.layers import OwnedTable, find_unused_tables


def drop_unused(ctx: HandlerContext, *, dry_run: bool = False, **version: Any) -> list[str]:
    """Drop the unused tables of all jobs or of one version, and return their names. Call it in a thread."""
    assert ctx.pool is not None
    with ctx.pool.connection() as conn:
        owners = list_owners(conn).items()
    owned = [
        OwnedTable(table.qualified, owner.job_id, owner.asset_id, owner.version_ordinal)
        for table, owner in owners
        # A table that a job without an asset has loaded is its result.
        if not (owner.is_loaded and owner.asset_id is None)
        and all(getattr(owner, name) == value for name, value in version.items())
        and owner.job_id != ctx.job_id
    ]
    unused = asyncio.run(_find_unused(ctx, owned)) if owned else []
    if not dry_run:
        with ctx.pool.connection() as conn:
            for name in unused:
                drop_table(conn, Table.parse(name))
                ctx.logger.info("dropped %s: no version uses it, and its job has ended", name)
    return unused


async def _find_unused(ctx: HandlerContext, owned: Sequence[OwnedTable]) -> list[str]:
    assert ctx.pool is not None
    async with ctx.pool.store_connection() as conn:
        return await find_unused_tables(conn, owned)
