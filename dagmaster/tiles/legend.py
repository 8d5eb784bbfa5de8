"""The meaning of a raster's colours, for legends."""

from typing import Any, Final, Literal

import rasterio
from fastapi import APIRouter, Depends
from pydantic import BaseModel
from rio_tiler.types import ColorMapType

from dagmaster.geo.raster.reader import GDAL_OPTIONS
from dagmaster.tiles.parameters import Bands, Rescale, colour_map, parse_rescale
from dagmaster.tiles.reader import CogReader
from dagmaster.tiles.sources import Raster

STOPS: Final = 9
MAX_CLASSES: Final = 256
GREYS: Final = {level: (level, level, level, 255) for level in range(256)}


class LegendEntry(BaseModel):
    """`colour` is in CSS notation."""

    value: float
    colour: str


class Legend(BaseModel):
    """`gradient`: colours between two values. `classes`: a colour for each value. `picture`: the bands are colours."""

    kind: Literal["gradient", "classes", "picture"]
    bands: list[int]
    entries: list[LegendEntry]


def make_legend(raster: Any, bands: tuple[int, ...], rescale: Any, colours: ColorMapType | None) -> Legend:
    """`raster` is an open CogReader."""
    if len(bands) > 1:
        return Legend(kind="picture", bands=list(bands), entries=[])
    palette = raster.colormap if colours is None and rescale is None else None
    if palette:
        used = {value: colour for value, colour in palette.items() if len(colour) < 4 or colour[3]}
        entries = [_entry(value, colour) for value, colour in list(used.items())[:MAX_CLASSES]]
        return Legend(kind="classes", bands=list(bands), entries=entries)
    is_picture = raster.dataset.dtypes[bands[0] - 1] == "uint8" and rescale is None
    low, high = (0.0, 255.0) if is_picture else (rescale or raster.ranges(bands))[0]
    gradient: Any = colours or GREYS
    entries = []
    for number in range(STOPS):
        share = number / (STOPS - 1)
        entries.append(_entry(low + share * (high - low), gradient[round(share * 255)]))
    return Legend(kind="gradient", bands=list(bands), entries=entries)


def _entry(value: float, colour: Any) -> LegendEntry:
    return LegendEntry(value=value, colour="#" + "".join(f"{int(part):02x}" for part in colour[:3]))


def add_route(router: APIRouter) -> None:
    @router.get("/legend", operation_id="getLegend")
    def get_legend(
        raster: Raster, bands: Bands = Depends(), rescale: Rescale = None, colours: Any = Depends(colour_map)
    ) -> Legend:
        """Get the values that the colours of the tiles stand for, with the same parameters."""
        with rasterio.Env(**GDAL_OPTIONS), CogReader(raster) as opened:
            return make_legend(opened, opened.shown_bands(bands.indexes), parse_rescale(rescale), colours)
