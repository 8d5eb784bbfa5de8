"""The accepted parameters of rasters: TiTiler's, without formulas, URLs and unbounded sizes."""

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from fastapi import Query, Request
from pydantic import AfterValidator, BeforeValidator, Field
from rio_tiler.colormap import cmap
from rio_tiler.types import ColorMapType
from titiler.core.dependencies import DefaultDependency, RescaleType
from titiler.core.resources.enums import ImageType, MediaType
from titiler.core.utils import accept_media_type
from titiler.core.validation import validate_rescale

from dagmaster.errors import Invalid

MAX_BANDS: Final = 4
MAX_PIXELS: Final = 2048
MAX_TILE_PIXELS: Final = 1024
MAX_BINS: Final = 256
IMAGE_TYPES: Final = (ImageType.png, ImageType.webp, ImageType.jpeg, ImageType.jpg)
Resampling = Literal["nearest", "bilinear", "cubic", "average"]
BandNumber = Annotated[int, Field(ge=1, le=65535)]
Pixels = Annotated[int, Field(ge=1, le=MAX_PIXELS)]


@dataclass
class Bands(DefaultDependency):
    indexes: Annotated[
        list[BandNumber] | None,
        Query(
            alias="bidx", max_length=MAX_BANDS, description="Bands, counted from 1. Default: the colours, or band 1."
        ),
    ] = None


@dataclass
class Sampling(DefaultDependency):
    resampling_method: Annotated[
        Resampling | None, Query(alias="resampling", description="How pixels are resampled; default: nearest.")
    ] = None
    reproject_method: Annotated[
        Resampling | None, Query(alias="reproject", description="How pixels are reprojected; default: nearest.")
    ] = None
    unscale: Annotated[bool | None, Query(description="Apply the scale and offset of the file.")] = None


@dataclass
class ImageSize(DefaultDependency):
    """In the path or in the query."""

    max_size: Annotated[Pixels | None, Field(description="The longer side in pixels.")] = 1024
    height: Annotated[Pixels | None, Field(description="Height in pixels.")] = None
    width: Annotated[Pixels | None, Field(description="Width in pixels.")] = None

    def __post_init__(self) -> None:
        if self.width or self.height:
            self.max_size = None


@dataclass
class StatisticsOptions(DefaultDependency):
    categorical: Annotated[bool | None, Query(description="Count the values instead of binning them.")] = None
    percentiles: Annotated[
        list[Annotated[int, Field(ge=0, le=100)]] | None,
        Query(alias="p", max_length=10, description="Percentiles; default: 2 and 98."),
    ] = None

    def __post_init__(self) -> None:
        self.percentiles = self.percentiles or [2, 98]


@dataclass
class HistogramOptions(DefaultDependency):
    bins: Annotated[int, Query(alias="histogram_bins", ge=1, le=MAX_BINS, description="Number of equal bins.")] = 10


Rescale = Annotated[
    list[str] | None,
    BeforeValidator(validate_rescale),
    Query(max_length=MAX_BANDS, description="MIN,MAX of the values that are drawn, once or for each band."),
]


def parse_rescale(rescale: list[str] | None) -> RescaleType | None:
    if rescale is None:
        return None
    ranges: RescaleType = []
    for text in rescale:
        low, high = map(float, text.split(","))
        if not low < high < float("inf") or low == float("-inf"):
            raise Invalid("rescale: must be two numbers MIN,MAX, with MIN below MAX")
        ranges.append((low, high))
    return ranges


@dataclass
class Rendering(DefaultDependency):
    """`accepted` is the caller's preferred image type if the path names none."""

    request: Request
    rescale: Rescale = None
    add_mask: Annotated[bool | None, Query(alias="return_mask", description="Draw no data as transparent.")] = None

    def as_dict(self, exclude_none: bool = True) -> dict[str, Any]:
        header = self.request.headers.get("accept", "")
        media = (
            accept_media_type(header, [MediaType[kind.name] for kind in IMAGE_TYPES]) if "image/" in header else None
        )
        values = {
            "rescale": parse_rescale(self.rescale),
            "add_mask": self.add_mask,
            "accepted": ImageType[media.name] if media is not None else None,
        }
        return {name: value for name, value in values.items() if value is not None}


def known_colour_map(name: str) -> str:
    if name not in cmap.list():
        raise ValueError("no colour map has this name; known are viridis, magma, terrain and the others of rio-tiler")
    return name


def colour_map(
    colormap_name: Annotated[
        Annotated[str, AfterValidator(known_colour_map)] | None,
        Query(max_length=40, description="Colours of a single band, such as viridis."),
    ] = None,
) -> ColorMapType | None:
    return cmap.get(colormap_name) if colormap_name else None


def no_algorithm() -> None:
    """Algorithms and formulas run the caller's code for an unbounded time."""


def check_tile_size(
    tilesize: Annotated[int | None, Query(ge=1, le=MAX_TILE_PIXELS, description="Pixels on each side.")] = None,
) -> None:
    """TiTiler itself accepts any size."""
