"""The location of a raster on the globe: its outline and its box in longitude and latitude."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from affine import Affine
from pydantic import BaseModel
from rasterio.warp import transform as transform_points
from shapely import Polygon, box, make_valid, orient_polygons
from shapely.affinity import translate
from shapely.geometry import mapping
from shapely.ops import unary_union

from dagmaster.geo.errors import RasterRejected

WGS84: Final = "EPSG:4326"
POINTS_PER_EDGE: Final = 21
DIGITS: Final = 9
# Allows for rounding, and for grids of pixel centres that extend half a pixel over the pole.
SLACK_DEGREES: Final = 1.0


Bbox = tuple[float, float, float, float]


class Footprint(BaseModel, frozen=True):
    """`bbox` is west, south, east, north; west is greater than east across the antimeridian."""

    bbox: Bbox
    geometry: dict[str, Any]


def footprint_of(crs: Any, transform: Any, width: int, height: int) -> Footprint:
    """Raises RasterRejected for pixels outside the globe in this CRS."""
    affine = Affine(*transform[:6])
    xs, ys = zip(*(affine * pixel for pixel in _outline(width, height)), strict=True)
    longitudes, latitudes = transform_points(crs, WGS84, xs, ys)
    if not all(map(math.isfinite, (*longitudes, *latitudes))) or max(map(abs, latitudes)) > 90 + SLACK_DEGREES:
        raise RasterRejected("its pixels are nowhere on the globe in its CRS: the CRS or the georeference is wrong")
    latitudes = [min(max(latitude, -90.0), 90.0) for latitude in latitudes]
    unwrapped = _unwrapped(longitudes)
    if abs(unwrapped[-1] - unwrapped[0]) > 180:  # A ring around the globe has a pole inside.
        is_north = sum(latitudes) > 0
        return _around_the_globe(min(latitudes), 90.0) if is_north else _around_the_globe(-90.0, max(latitudes))
    return _of_ring(unwrapped, latitudes)


def _outline(width: int, height: int) -> list[tuple[float, float]]:
    """Points along the four edges and back to the first corner, because edges are curved in other projections."""
    corners = [(0, 0), (width, 0), (width, height), (0, height), (0, 0)]
    steps = [step / POINTS_PER_EDGE for step in range(POINTS_PER_EDGE)]
    points = [
        (start[0] + (end[0] - start[0]) * step, start[1] + (end[1] - start[1]) * step)
        for start, end in pairwise(corners)
        for step in steps
    ]
    return [*points, corners[0]]


def _unwrapped(longitudes: list[float]) -> list[float]:
    """Without jumps from 180 to -180."""
    result = [longitudes[0]]
    for longitude in longitudes[1:]:
        result.append(longitude - 360 * round((longitude - result[-1]) / 360))
    return result


def _around_the_globe(south: float, north: float) -> Footprint:
    bbox = (-180.0, _rounded(south), 180.0, _rounded(north))
    return Footprint(bbox=bbox, geometry=_geojson(box(-180, south, 180, north)))


def _of_ring(longitudes: list[float], latitudes: list[float]) -> Footprint:
    west, east = min(longitudes), max(longitudes)
    south, north = min(latitudes), max(latitudes)
    if east - west >= 360 - 1e-6:
        return _around_the_globe(south, north)
    shift = 360 * math.floor((west + 180) / 360)
    west, east = west - shift, east - shift
    ring = translate(make_valid(Polygon(zip(longitudes, latitudes, strict=True))), xoff=-shift)
    if east > 180:
        here, beyond = ring.intersection(box(-180, -90, 180, 90)), ring.intersection(box(180, -90, 540, 90))
        ring = unary_union([here, translate(beyond, xoff=-360)])
        east -= 360
    return Footprint(bbox=(_rounded(west), _rounded(south), _rounded(east), _rounded(north)), geometry=_geojson(ring))


def bbox_around(boxes: Sequence[Sequence[float]]) -> list[float]:
    """Spans the globe from west to east if a box crosses the antimeridian."""
    west, south, east, north = zip(*boxes, strict=True)
    if any(box[0] > box[2] for box in boxes):
        return [-180.0, min(south), 180.0, max(north)]
    return [min(west), min(south), max(east), max(north)]


def _rounded(degrees: float) -> float:
    return round(degrees, DIGITS)


def _geojson(shape: Any) -> dict[str, Any]:
    """Straight edges need no points between; counter-clockwise, as GeoJSON requires."""
    geometry: dict[str, Any] = mapping(orient_polygons(shape.simplify(1e-9)))
    return {"type": geometry["type"], "coordinates": _listed(geometry["coordinates"])}


def _listed(coordinates: Any) -> Any:
    if isinstance(coordinates, int | float):
        return _rounded(float(coordinates))
    return [_listed(part) for part in coordinates]
