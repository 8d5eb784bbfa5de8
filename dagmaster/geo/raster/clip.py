"""Cut a part out of an image."""

import math
from collections.abc import Mapping
from typing import Any

from rasterio.warp import transform_bounds, transform_geom
from shapely.geometry import shape

from dagmaster.geo.errors import RasterRejected
from dagmaster.geo.footprint import WGS84
from dagmaster.geo.raster.image import Image, ImageSource, open_image
from dagmaster.geo.raster.part import Part

Bbox = tuple[float, float, float, float]


def clip_to_bbox(source: ImageSource, bbox: Bbox) -> ImageSource:
    """The pixels that touch the box, which is west, south, east, north in degrees."""
    west, south, east, north = bbox
    if not (west < east and south < north):
        raise RasterRejected("bbox: must be west, south, east, north, and must not cross the antimeridian")
    with open_image(source) as image:
        bounds = transform_bounds(WGS84, image.crs, west, south, east, north)
        return source.model_copy(update={"part": _part(image, bounds)})


def clip_to_geometry(source: ImageSource, geometry: Mapping[str, Any]) -> ImageSource:
    """The pixels whose centres are in the polygons, a GeoJSON geometry in longitude and latitude."""
    if geometry.get("type") not in ("Polygon", "MultiPolygon"):
        raise RasterRejected("geometry: must be a GeoJSON Polygon or MultiPolygon")
    with open_image(source) as image:
        try:
            cutline = transform_geom(WGS84, image.crs, dict(geometry))
            bounds = shape(cutline).bounds
        except (ValueError, KeyError, TypeError) as error:
            raise RasterRejected(f"geometry: cannot be read: {error}") from error
        return source.model_copy(update={"part": _part(image, bounds), "cutline": cutline})


def _part(image: Image, bounds: Bbox) -> Part:
    if not all(map(math.isfinite, bounds)):
        raise RasterRejected("it is nowhere in the CRS of the raster")
    left, bottom, right, top = bounds
    first, last = ~image.transform * (left, top), ~image.transform * (right, bottom)
    # After two transformations, a coordinate on the edge of a pixel may be slightly beside it.
    column, row = max(math.floor(first[0] + 1e-6), 0), max(math.floor(first[1] + 1e-6), 0)
    end_column, end_row = min(math.ceil(last[0] - 1e-6), image.width), min(math.ceil(last[1] - 1e-6), image.height)
    if column >= end_column or row >= end_row:
        raise RasterRejected("it does not touch the raster")
    return Part(column=column, row=row, width=end_column - column, height=end_row - row)
