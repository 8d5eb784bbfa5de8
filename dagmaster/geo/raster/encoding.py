"""Compress pixels as GDAL does: blocks and directories of a small TIFF in memory."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from affine import Affine
from pydantic import BaseModel
from rasterio.enums import ColorInterp
from rasterio.errors import NotGeoreferencedWarning
from rasterio.io import MemoryFile

from dagmaster.geo.raster.image import Image
from dagmaster.geo.raster.profiles import Profile
from dagmaster.geo.raster.reduction import Pixels
from dagmaster.geo.raster.tiff import Directory, blocks_of, read_directories
from dagmaster.geo.raster.validate import COG_BLOCK, JsonFloat

STATISTICS: Final = "STATISTICS_"


class Encoding(BaseModel, frozen=True):
    """The type of the pixels and their compression. `alpha` is the index of a transparency band."""

    dtype: str
    count: int
    nodata: JsonFloat | None
    alpha: int | None
    has_mask: bool
    alpha_is_mask: bool
    options: dict[str, Any]

    @property
    def pixel_bytes(self) -> int:
        return self.count * int(np.dtype(self.dtype).itemsize) + self.has_mask


@dataclass(frozen=True, slots=True)
class Encoded:
    """The blocks of the image and, if there is one, of its mask."""

    blocks: list[Any]
    masks: list[Any] | None


def encoding_of(image: Image, profile: Profile) -> Encoding:
    """JPEG has no transparency, so it becomes a mask, as with GDAL's own driver."""
    dataset = image.dataset
    colours = dataset.colorinterp
    alpha = colours.index(ColorInterp.alpha) if ColorInterp.alpha in colours else None
    alpha_is_mask = profile.compression == "JPEG" and alpha == dataset.count - 1 and dataset.count in (2, 4)
    count = dataset.count - alpha_is_mask
    return Encoding(
        dtype=dataset.dtypes[0],
        count=count,
        nodata=dataset.nodata,
        alpha=None if alpha_is_mask else alpha,
        has_mask=image.has_mask or alpha_is_mask,
        alpha_is_mask=alpha_is_mask,
        options=_options(profile, colours[:count]),
    )


def _options(profile: Profile, colours: Sequence[ColorInterp]) -> dict[str, Any]:
    is_rgb = list(colours[:3]) == [ColorInterp.red, ColorInterp.green, ColorInterp.blue]
    is_picture = profile.compression == "JPEG" and len(colours) == 3
    kind = "YCBCR" if is_picture else "RGB" if is_rgb else "MINISBLACK"
    options = {
        "compress": profile.compression,
        "zstd_level": profile.level if profile.compression == "ZSTD" else None,
        "jpeg_quality": profile.quality if profile.compression == "JPEG" else None,
        "webp_level": profile.quality if profile.compression == "WEBP" else None,
        "predictor": profile.predictor,
        "photometric": kind,
        "alpha": "YES" if len(colours) > 1 and colours[-1] == ColorInterp.alpha else None,
        "tiled": True,
        "blockxsize": COG_BLOCK,
        "blockysize": COG_BLOCK,
        "interleave": "pixel",
        "endianness": "LITTLE",
        "bigtiff": "NO",
    }
    return {name: value for name, value in options.items() if value is not None}


def encode(pixels: Pixels, encoding: Encoding) -> Encoded:
    with MemoryFile(ext=".tif") as memory:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            with _created(memory, encoding, *pixels.bands.shape[1:]) as dataset:
                _write(dataset, pixels)
        file = memoryview(memory.getbuffer())
        image, *masks = read_directories(file)
        blocks = [bytes(block) for block in blocks_of(file, image)]
        return Encoded(blocks, [bytes(block) for block in blocks_of(file, masks[0])] if masks else None)


def template_of(image: Image, encoding: Encoding) -> list[Directory]:
    """The directories of a one-block file, with all metadata of the image."""
    side = COG_BLOCK
    empty = Pixels(
        np.zeros((encoding.count, side, side), encoding.dtype),
        np.zeros((side, side), "uint8") if encoding.has_mask else None,
    )
    with MemoryFile(ext=".tif") as memory:
        with _created(memory, encoding, side, side, crs=image.crs, transform=image.transform) as dataset:
            _describe(dataset, image.dataset, encoding)
            _write(dataset, empty)
        return read_directories(memoryview(memory.getbuffer()))


def _created(
    memory: MemoryFile, encoding: Encoding, height: int, width: int, crs: Any = None, transform: Affine | None = None
) -> Any:
    place = {"crs": crs, "transform": transform} if crs is not None else {}
    return memory.open(
        driver="GTiff",
        width=width,
        height=height,
        count=encoding.count,
        dtype=encoding.dtype,
        nodata=encoding.nodata,
        **encoding.options,
        **place,
    )


def _write(dataset: Any, pixels: Pixels) -> None:
    dataset.write(pixels.bands)
    if pixels.mask is not None:
        dataset.write_mask(pixels.mask)


def _describe(target: Any, source: Any, encoding: Encoding) -> None:
    """Copy metadata, names, colours and units, but not statistics, which belong to the source image."""
    indexes = source.indexes[: encoding.count]
    target.update_tags(**_kept(source.tags()))
    for index in indexes:
        target.update_tags(index, **_kept(source.tags(index)))
        if source.descriptions[index - 1]:
            target.set_band_description(index, source.descriptions[index - 1])
        if source.units[index - 1]:
            target.set_band_unit(index, source.units[index - 1])
    if any(scale != 1 for scale in source.scales) or any(source.offsets):
        target.scales, target.offsets = source.scales[: encoding.count], source.offsets[: encoding.count]
    if source.colorinterp[0] == ColorInterp.palette:
        target.write_colormap(1, source.colormap(1))
    elif "YCBCR" not in encoding.options.values():
        target.colorinterp = source.colorinterp[: encoding.count]


def _kept(tags: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in tags.items() if not name.startswith(STATISTICS)}
