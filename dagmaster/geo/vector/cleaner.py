"""Clean the batches of a layer: valid geometries in longitude and latitude, simple columns, boxes, a sort key."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import shapely
from shapely import GeometryType

from dagmaster.geo.errors import VectorRejected
from dagmaster.geo.vector import geometries
from dagmaster.geo.vector.columns import MAX_COLUMNS, Column, safe_names, simple_type, simplify_column
from dagmaster.geo.vector.crs import ResolvedCrs
from dagmaster.geo.vector.report import Box, FeatureCounts

GEOMETRY: Final = "geometry"
BBOX: Final = "bbox"
# Not a possible name of a layer's column.
SORT_KEY: Final = "\x1fhilbert"
CORNERS: Final = ("xmin", "ymin", "xmax", "ymax")
BBOX_TYPE: Final = pa.struct([(corner, pa.float64()) for corner in CORNERS])
# Per coordinate: two centimetres at the equator, and the distance fits into 64 bits.
HILBERT_BITS: Final = 31
# Allows for rounding in transformations.
_SLACK_DEGREES: Final = 1e-6


class LayerCleaner:
    """Also counts for the report."""

    def __init__(self, schema: Any, geometry: str, crs: ResolvedCrs) -> None:
        self._crs = crs
        self._geometry = geometry
        self._sources = [name for name in schema.names if name != geometry]
        if len(self._sources) > MAX_COLUMNS:
            raise VectorRejected(f"it has {len(self._sources)} columns; the limit is {MAX_COLUMNS}")
        names = safe_names(self._sources)
        self.renamed = [(old, new) for old, new in zip(self._sources, names, strict=True) if old != new]
        fields = [
            pa.field(name, simple_type(schema.field(source).type))
            for name, source in zip(names, self._sources, strict=True)
        ]
        self.columns = [Column(name=field.name, type=str(field.type)) for field in fields]
        self.schema = pa.schema(
            [*fields, pa.field(GEOMETRY, pa.binary()), pa.field(BBOX, BBOX_TYPE), pa.field(SORT_KEY, pa.uint64())]
        )
        self.counts = FeatureCounts()
        self.kinds: set[GeometryType] = set()
        self._corners = np.array([np.inf, np.inf, -np.inf, -np.inf])

    @property
    def bbox(self) -> Box | None:
        if not self.counts.kept:
            return None
        west, south, east, north = (round(float(corner), 9) for corner in self._corners)
        return west, south, east, north

    def clean(self, batch: Any) -> Any:
        """The usable features of the batch."""
        shapes, places = self._read_shapes(batch)
        shapes = self._flattened(shapes)
        if self._crs.to_wgs84 is not None:
            shapes = shapely.transform(shapes, self._crs.transform)
        shapes, places = self._on_the_globe(shapes, places)
        shapes, is_broken = geometries.repair(shapes)
        is_left = ~(shapely.is_missing(shapes) | shapely.is_empty(shapes))
        self.counts.collapsed += int((~is_left).sum())
        self.counts.repaired += int((is_broken & is_left).sum())
        shapes, places = shapes[is_left], places[is_left]
        self.counts.kept += len(shapes)
        self.kinds |= {GeometryType(kind) for kind in np.unique(shapely.get_type_id(shapes))}
        return self._assemble(batch, shapes, places)

    def _read_shapes(self, batch: Any) -> tuple[Any, Any]:
        values = np.asarray(batch.column(self._geometry).to_numpy(zero_copy_only=False), dtype=object)
        shapes = shapely.from_wkb(values, on_invalid="ignore")
        is_null = np.array([value is None for value in values], dtype=bool)
        is_unreadable = shapely.is_missing(shapes) & ~is_null
        has_shape = ~(shapely.is_missing(shapes) | shapely.is_empty(shapes))
        self.counts.read += len(values)
        self.counts.unreadable += int(is_unreadable.sum())
        self.counts.without_geometry += int((~has_shape & ~is_unreadable).sum())
        places = np.flatnonzero(has_shape)
        return shapes[places], places

    def _flattened(self, shapes: Any) -> Any:
        is_deep = shapely.has_z(shapes) | shapely.has_m(shapes)
        self.counts.flattened += int(is_deep.sum())
        return shapely.force_2d(shapes) if is_deep.any() else shapes

    def _on_the_globe(self, shapes: Any, places: Any) -> tuple[Any, Any]:
        boxes = shapely.bounds(shapes)
        longitudes, latitudes = np.abs(boxes[:, [0, 2]]).max(axis=1), np.abs(boxes[:, [1, 3]]).max(axis=1)
        # Longitudes up to 360 are common across the antimeridian. NaN is off the globe, too.
        is_on = (longitudes <= 360 + _SLACK_DEGREES) & (latitudes <= 90 + _SLACK_DEGREES)
        self.counts.off_the_globe += int((~is_on).sum())
        return shapes[is_on], places[is_on]

    def _assemble(self, batch: Any, shapes: Any, places: Any) -> Any:
        boxes = shapely.bounds(shapes).reshape(-1, 4)
        self.counts.wide += int((boxes[:, 2] - boxes[:, 0] > 180).sum())
        if len(boxes):
            self._corners[:2] = np.minimum(self._corners[:2], boxes[:, :2].min(axis=0))
            self._corners[2:] = np.maximum(self._corners[2:], boxes[:, 2:].max(axis=0))
        kept = batch.take(pa.array(places)) if len(places) < batch.num_rows else batch
        columns = [self._column(kept, number) for number in range(len(self._sources))]
        middle_x, middle_y = (boxes[:, 0] + boxes[:, 2]) / 2, (boxes[:, 1] + boxes[:, 3]) / 2
        return pa.RecordBatch.from_arrays(
            [
                *columns,
                pa.array(shapely.to_wkb(shapes, flavor="iso"), pa.binary()),
                boxes_array(boxes),
                pa.array(hilbert_distances(middle_x, middle_y)),
            ],
            schema=self.schema,
        )

    def _column(self, batch: Any, number: int) -> Any:
        name = self._sources[number]
        try:
            return simplify_column(batch.column(name), self.schema.field(number).type)
        except pa.ArrowInvalid as error:
            raise VectorRejected(f"the column {name[:80]!r} has values that cannot be stored: {error}") from error


def boxes_array(boxes: Any) -> Any:
    return pa.StructArray.from_arrays(
        [pa.array(np.ascontiguousarray(boxes[:, side])) for side in range(4)], fields=list(BBOX_TYPE)
    )


def hilbert_distances(longitudes: Any, latitudes: Any) -> Any:
    """The position of each point on the Hilbert curve over the globe: points close on the curve are close on the globe.

    As uint64. Points beyond the globe are clamped to its edge.
    """
    x, y = _grid_cells(longitudes, -180.0, 360.0), _grid_cells(latitudes, -90.0, 180.0)
    distance = np.zeros(len(x), np.uint64)
    full = np.uint64(2**HILBERT_BITS - 1)
    for bit in range(HILBERT_BITS - 1, -1, -1):
        side, shift = np.uint64(1 << bit), np.uint64(bit)
        right, upper = (x & side) >> shift, (y & side) >> shift
        distance += (side * side) * ((np.uint64(3) * right) ^ upper)
        # Lower quadrants are rotated; right ones are mirrored as well.
        is_lower = upper == 0
        mirrored = is_lower & (right == 1)
        x, y = np.where(mirrored, full - x, x), np.where(mirrored, full - y, y)
        x, y = np.where(is_lower, y, x), np.where(is_lower, x, y)
    return distance


def _grid_cells(degrees: Any, lowest: float, extent: float) -> Any:
    scaled = (np.asarray(degrees, np.float64) - lowest) / extent * 2**HILBERT_BITS
    return np.clip(scaled, 0, 2**HILBERT_BITS - 1).astype(np.uint64)
