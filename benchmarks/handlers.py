"""What the measured workers can do besides the basic handlers."""

import random

from dagmaster import Context, handler
from dagmaster.model.added_nodes import AddedNode
from dagmaster.model.dynamic_nodes import encode_slices


@handler("bench.add")
async def add(ctx: Context) -> None:
    """Add an echo for each item to this job, and a gate behind them all."""
    nodes = [
        AddedNode(f"{ctx.node_id}.{number}", "echo", {"item": item}) for number, item in enumerate(ctx.params["items"])
    ]
    gate = AddedNode(f"{ctx.node_id}.all", type="gate", after=tuple(node.node_id for node in nodes))
    await ctx.add(encode_slices([*nodes, gate]))


@handler("bench.swell")
async def swell(ctx: Context) -> dict[str, str]:
    """An output of this many bytes, which no compression makes small."""
    return {"text": random.randbytes(ctx.params["size"] // 2).hex()}
