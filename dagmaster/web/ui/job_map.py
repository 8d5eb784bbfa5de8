"""The map of a job: the shapes in its inputs and outputs, and the tiles of its fan-outs by state."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dagmaster.ids import JobId
from dagmaster.model.outcome import Outcome
from dagmaster.model.shapes import Box, Shape, Shapes, shapes_of
from dagmaster.model.states import JobStatus
from dagmaster.store.connect import Connection
from dagmaster.store.node_places import MAX_TILES, box_of, placed_outputs, tile_places

MAX_LISTED: Final = 20
# The labels of the legend.
STATES: Final = (
    Outcome.COMPLETED,
    Outcome.RUNNING,
    Outcome.DISPATCHED,
    Outcome.READY,
    Outcome.FAILED,
    Outcome.CANCELLED,
    Outcome.SKIPPED,
)


@dataclass(frozen=True, slots=True)
class Tiles:
    """The children of fan-outs that have a location. `path` is the id of the node."""

    shapes: Shapes = field(default_factory=Shapes)
    job_id: str = ""

    def __len__(self) -> int:
        return len(self.shapes)

    @property
    def counts(self) -> list[tuple[str, int]]:
        numbers = Counter(shape.state for shape in self.shapes)
        return [(state.value, numbers[state.value]) for state in STATES if numbers[state.value]]

    @property
    def failed(self) -> list[Shape]:
        return [shape for shape in self.shapes if shape.state == Outcome.FAILED][:MAX_LISTED]


async def job_shapes(conn: Connection, job: Mapping[str, Any], inputs: Any, result: Any) -> Shapes:
    """The shapes of the result, or of the outputs so far."""
    if job["status"] == JobStatus.COMPLETED:
        return shapes_of({"inputs": inputs, "result": result})
    return shapes_of({"inputs": inputs, **await placed_outputs(conn, job["job_id"])})


async def job_tiles(conn: Connection, job_id: JobId) -> Tiles:
    shapes = Shapes()
    rows = await tile_places(conn, job_id)
    for row in rows[:MAX_TILES]:
        if (box := box_of(row)) is not None:
            [shape] = shapes_of({"bbox": box})
            shapes.append(replace(shape, path=row["node_id"], kind="tile", state=row["shown_status"]))
    shapes.is_cut = len(rows) > MAX_TILES
    return Tiles(shapes, str(job_id))


def without_tiles(shapes: Shapes, tiles: Tiles) -> Shapes:
    """Leave out the outputs of tiles, which are already drawn as tiles."""
    tile_boxes = {_box(tile) for tile in tiles.shapes}
    others = Shapes(shape for shape in shapes if shape.kind != "box" or _box(shape) not in tile_boxes)
    others.is_cut = shapes.is_cut
    return others


def _box(shape: Shape) -> Box:
    return shape.west, shape.south, shape.east, shape.north
