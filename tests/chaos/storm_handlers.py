"""More handlers for a storm: one in its own process, and one that resumes where an earlier attempt stopped."""

import asyncio
from time import monotonic
from typing import Any

from ledger import Execution, Work, work

from dagmaster.handlers import HandlerContext, contract, handler

PHASES = ("north", "east", "south", "west")


@handler("ledger.isolated_work", queue="work", params=Work, isolation="process")
def isolated_work(ctx: HandlerContext, params: Work) -> dict[str, Any]:
    return work(ctx, params)


@handler("ledger.resumable_work", queue="work", params=Work)
async def resumable_work(ctx: HandlerContext, params: Work) -> dict[str, Any]:
    """The ledger says which phases were begun, and which were saved before it was told so.

    In a long outage a handler goes on before its checkpoint is stored: then nobody has said that it is.
    """
    execution = Execution(ctx)
    await asyncio.to_thread(execution.write, "start")
    for phase in ctx.remaining(PHASES):
        await asyncio.to_thread(execution.write, f"begin {phase}")
        await asyncio.sleep(params.seconds)
        began = monotonic()
        await ctx.checkpoint(phase)
        if monotonic() - began < contract.STORED_WITHIN_SECONDS:
            await asyncio.to_thread(execution.write, f"saved {phase}")
    await asyncio.to_thread(execution.write, "end")
    return {"value": params.value}
