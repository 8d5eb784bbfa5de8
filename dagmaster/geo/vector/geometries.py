"""Repair geometries: valid, two-dimensional, and of their original dimension."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import shapely
from shapely import GeometryType

# From single to multi types, by shapely's type ids.
_MULTI_CLASSES: Final = {
    GeometryType.POINT: (GeometryType.MULTIPOINT, shapely.multipoints),
    GeometryType.LINESTRING: (GeometryType.MULTILINESTRING, shapely.multilinestrings),
    GeometryType.POLYGON: (GeometryType.MULTIPOLYGON, shapely.multipolygons),
}
NAMES: Final = {
    GeometryType.POINT: "Point",
    GeometryType.LINESTRING: "LineString",
    GeometryType.POLYGON: "Polygon",
    GeometryType.MULTIPOINT: "MultiPoint",
    GeometryType.MULTILINESTRING: "MultiLineString",
    GeometryType.MULTIPOLYGON: "MultiPolygon",
    GeometryType.GEOMETRYCOLLECTION: "GeometryCollection",
}


def repair(shapes: Any) -> tuple[Any, Any]:
    """Make the shapes valid in place, and return them with a mask of the repaired ones. Empty results become None.

    The method "structure" keeps the area of overlapping rings, where "linework" would make holes of it. Polygons that
    collapse become lines: parts of another dimension are removed.
    """
    is_broken = ~shapely.is_valid(shapes)
    broken = shapes[is_broken]
    if len(broken):
        dimensions = shapely.get_dimensions(broken)
        mended = shapely.make_valid(broken, method="structure", keep_collapsed=False)
        pairs = zip(mended, dimensions, strict=True)
        shapes[is_broken] = [_of_dimension(shape, dimension) for shape, dimension in pairs]
    return shapes, is_broken


def _of_dimension(shape: Any, dimension: int) -> Any:
    if shape is None or shape.is_empty:
        return None
    if shape.geom_type != "GeometryCollection":
        return shape if shapely.get_dimensions(shape) == dimension else None
    parts = shapely.get_parts(shapely.get_parts(shape))
    kept = parts[shapely.get_dimensions(parts) == dimension]
    return shapely.union_all(kept) if len(kept) else None


def promoted(table: Any, column: str) -> Any:
    """The table with the single parts in this WKB column converted to multi parts."""
    shapes = shapely.from_wkb(table.column(column).to_numpy())
    kinds = shapely.get_type_id(shapes)
    for single, (_, collect) in _MULTI_CLASSES.items():
        if len(places := np.flatnonzero(kinds == single)):
            shapes[places] = collect(shapes[places], indices=np.arange(len(places)))
    values = pa.array(shapely.to_wkb(shapes, flavor="iso"), pa.binary())
    return table.set_column(table.schema.get_field_index(column), column, values)


def needs_promotion(kinds: set[GeometryType]) -> bool:
    """Whether a layer mixes single and multi parts of one kind."""
    return any({single, multi} <= kinds for single, (multi, _) in _MULTI_CLASSES.items())


def promoted_kinds(kinds: set[GeometryType]) -> set[GeometryType]:
    if not needs_promotion(kinds):
        return kinds
    return {_MULTI_CLASSES[kind][0] if kind in _MULTI_CLASSES else kind for kind in kinds}
