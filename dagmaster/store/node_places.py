"""The locations of nodes: the boxes of their items, and the shapes in their values."""

from typing import Any, Final, TypedDict

from dagmaster.ids import JobId, NodeId
from dagmaster.model.shapes import Box, Shapes, is_touching, shapes_of
from dagmaster.store.connect import Connection
from dagmaster.store.statements import fetch, fetch_as

# Larger values are not searched for shapes.
INLINE_BYTES: Final = 16_384
MAX_UNFINISHED: Final = 20_000
MAX_TILES: Final = 2_000
MAX_OUTPUTS: Final = 200
# The limit for the values of a tile without a box: there may be many, and pages poll them.
TILE_BYTES: Final = 2_048


class PlacedNode(TypedDict):
    """`shown_status` is `cancelled` for a node that was in flight when its job ended."""

    node_id: NodeId
    parent_node_id: NodeId | None
    status: str
    ended_by: str | None
    shown_status: str
    fan_out_item_box: list[float] | None
    input_params: Any
    output: Any
    checkpoint_data: Any


async def unfinished_places(conn: Connection, job_id: JobId, *, has_failed: bool) -> list[PlacedNode]:
    """The nodes that a retry would run, at most one more than `MAX_UNFINISHED`."""
    values = {"job_id": job_id, "has_failed": has_failed, "inline_bytes": INLINE_BYTES, "limit": MAX_UNFINISHED + 1}
    return await fetch_as(conn, PlacedNode, "unfinished_places", values)


async def tile_places(conn: Connection, job_id: JobId) -> list[PlacedNode]:
    """The children of fan-outs, at most one more than `MAX_TILES`."""
    values = {"job_id": job_id, "inline_bytes": TILE_BYTES, "limit": MAX_TILES + 1}
    return await fetch_as(conn, PlacedNode, "tile_places", values)


async def placed_outputs(conn: Connection, job_id: JobId) -> dict[str, Any]:
    """The small outputs of the defined nodes so far."""
    values = {"job_id": job_id, "inline_bytes": INLINE_BYTES, "limit": MAX_OUTPUTS}
    return {row["node_id"]: row["output"] for row in await fetch(conn, "placed_outputs", values)}


async def has_added_nodes(conn: Connection, job_id: JobId) -> bool:
    [row] = await fetch(conn, "has_added_nodes", {"job_id": job_id})
    return bool(row["has_added"])


def box_of(node: PlacedNode) -> Box | None:
    """The box around all its shapes; None for a node without a location."""
    if (box := _item_box(node)) is not None:
        return box
    return _shapes(node).view


def is_in(node: PlacedNode, box: Box) -> bool:
    """Tests each shape: the box around all of them may touch what none of them does."""
    if (item_box := _item_box(node)) is not None and is_touching(item_box, box):
        return True
    return any(shape.touches(box) for shape in _shapes(node))


def _item_box(node: PlacedNode) -> Box | None:
    numbers = node["fan_out_item_box"]
    return (numbers[0], numbers[1], numbers[2], numbers[3]) if numbers is not None else None


def _shapes(node: PlacedNode) -> Shapes:
    return shapes_of([node["output"], node["checkpoint_data"], node["input_params"]])
