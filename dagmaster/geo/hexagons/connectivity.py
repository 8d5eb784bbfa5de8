"""The cheapest path over hexagons from the nearest source."""

from pathlib import Path
from typing import Any, Final

import h3
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from h3ronpy import grid_disk
from h3ronpy.vector import cells_to_coordinates
from pyproj import Geod
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from dagmaster.errors import Invalid
from dagmaster.geo.hexagons.raster_statistics import INDEX

COST: Final = "cost"
SOURCE: Final = "source"
MAX_CELLS: Final = 5_000_000
_GEOD: Final = Geod(ellps="WGS84")


def accumulate_cost(path: Path, column: str, sources: list[str]) -> Any:
    """The cost from the cheapest source to each reachable cell of the file, and that source.

    `column` is the cost per metre in a cell; cells without a cost above zero cannot be entered. A step to a neighbour
    costs the distance of the centres times the mean cost of both cells.
    """
    numbers, friction = _read(path, column)
    starts = _places_of(sources, numbers)
    costs, _, nearest = dijkstra(
        _graph(numbers, friction), directed=False, indices=starts, min_only=True, return_predecessors=True
    )
    is_reached = np.isfinite(costs)
    origin = numbers[nearest[is_reached]]
    return pa.table({INDEX: pa.array(numbers[is_reached]), COST: costs[is_reached], SOURCE: pa.array(origin)})


def _read(path: Path, column: str) -> tuple[Any, Any]:
    try:
        schema = pq.read_schema(path)
    except pa.ArrowException as error:
        raise Invalid(f"{path.name} is not a Parquet file of values by cell") from error
    if INDEX not in schema.names or column not in schema.names:
        raise Invalid(f"{path.name} needs the columns {INDEX!r} and {column!r}; it has: {', '.join(schema.names[:50])}")
    table = pq.read_table(path, columns=[INDEX, column])
    if table.num_rows > MAX_CELLS:
        raise Invalid(f"{path.name} has {table.num_rows} cells; {MAX_CELLS} are allowed: use a lower resolution")
    friction = table.column(column).cast(pa.float64(), safe=False).to_numpy()
    is_open = np.isfinite(friction) & (friction > 0)
    numbers = table.column(INDEX).to_numpy().astype(np.uint64)[is_open]
    order = np.argsort(numbers)
    if len(np.unique(numbers)) < len(numbers):
        raise Invalid(f"{path.name} has a cell twice")
    return numbers[order], friction[is_open][order]


def _places_of(sources: list[str], numbers: Any) -> Any:
    positions = []
    for text in sources:
        number = np.uint64(int(text, 16)) if h3.is_valid_cell(text) else np.uint64(0)
        position = int(np.searchsorted(numbers, number))
        if position == len(numbers) or numbers[position] != number:
            raise Invalid(f"the source {text[:40]!r} is no cell of the file that can be entered")
        positions.append(position)
    return np.array(positions)


def _graph(numbers: Any, friction: Any) -> Any:
    """Each pair of neighbours once."""
    lists = pa.array(grid_disk(pa.array(numbers, pa.uint64()), 1, flatten=False))
    others = lists.values.to_numpy().astype(np.uint64)
    owners = np.repeat(np.arange(len(numbers)), np.diff(lists.offsets.to_numpy()))
    positions = np.minimum(np.searchsorted(numbers, others), len(numbers) - 1)
    is_pair = (numbers[positions] == others) & (owners < positions)
    first, second = owners[is_pair], positions[is_pair]
    centres = pa.table(cells_to_coordinates(pa.array(numbers, pa.uint64())))
    latitudes, longitudes = centres.column("lat").to_numpy(), centres.column("lng").to_numpy()
    _, _, metres = _GEOD.inv(longitudes[first], latitudes[first], longitudes[second], latitudes[second])
    weights = metres * (friction[first] + friction[second]) / 2
    return csr_array((weights, (first, second)), shape=(len(numbers), len(numbers)))
