"""The meaning of a raster's colours, for legends."""

from typing import Any, Final, Literal

from pydantic import BaseModel
from rio_tiler.types import ColorMapType

from dagmaster.tiles.reader import CogReader

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


def make_legend(raster: CogReader, bands: tuple[int, ...], rescale: Any, colours: ColorMapType | None) -> Legend:
    if len(bands) > 1:
        return Legend(kind="picture", bands=list(bands), entries=[])
    if colours is None and rescale is None and (palette := raster.colormap):
        used = {value: colour for value, colour in palette.items() if len(colour) < 4 or colour[3]}
        entries = [_entry(value, colour) for value, colour in list(used.items())[:MAX_CLASSES]]
        return Legend(kind="classes", bands=list(bands), entries=entries)
    is_picture = raster.dataset.dtypes[bands[0] - 1] == "uint8" and rescale is None
    low, high = (0.0, 255.0) if is_picture else (rescale or raster.ranges(bands))[0]
    gradient: Any = colours or GREYS
    shares = [number / (STOPS - 1) for number in range(STOPS)]
    entries = [_entry(low + share * (high - low), gradient[round(share * 255)]) for share in shares]
    return Legend(kind="gradient", bands=list(bands), entries=entries)


def _entry(value: float, colour: Any) -> LegendEntry:
    return LegendEntry(value=value, colour="#" + "".join(f"{int(part):02x}" for part in colour[:3]))
