"""Read parts of a cloud-optimised GeoTIFF, and nothing else."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import rasterio
from rasterio.enums import ColorInterp
from rio_tiler.errors import TileOutsideBounds
from rio_tiler.io import Reader
from rio_tiler.models import ImageData

from dagmaster.errors import Invalid
from dagmaster.tiles.sources import RasterSource

# Without overviews, a tile may need the whole raster, so only small rasters may lack them.
MAX_SIDE_WITHOUT_OVERVIEWS: Final = 512
SAMPLE_PIXELS: Final = 256
PERCENTILES: Final = (2, 98)
MAX_KNOWN_RANGES: Final = 1000

Range = tuple[float, float]

_known_ranges: dict[tuple[str, tuple[int, ...]], list[Range]] = {}


class CogReader(Reader):
    """Uses the GeoTIFF driver only: otherwise GDAL would choose a driver by the content of the file."""

    input: RasterSource

    def __attrs_post_init__(self) -> None:
        source = self.input
        self.dataset = self._ctx_stack.enter_context(
            rasterio.open(source.path, driver="GTiff", opener=source.opener, sharing=False)
        )
        try:
            self._check()
            super().__attrs_post_init__()
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        dataset = self.dataset
        if dataset.crs is None:
            raise Invalid("the raster has no coordinate reference system: it cannot be drawn on a map")
        if max(dataset.width, dataset.height) > MAX_SIDE_WITHOUT_OVERVIEWS and not dataset.overviews(1):
            raise Invalid("the raster has no overviews; process it with raster_ingest to get a file that has them")

    def tile(self, tile_x: int, tile_y: int, tile_z: int, *args: Any, **kwargs: Any) -> ImageData:
        if not 0 <= tile_z <= self.tms.maxzoom:
            raise TileOutsideBounds(f"zoom {tile_z} is not between 0 and {self.tms.maxzoom}")
        return super().tile(tile_x, tile_y, tile_z, *args, **kwargs)

    def part(self, *args: Any, indexes: Sequence[int] | None = None, **kwargs: Any) -> ImageData:
        bands = self.shown_bands(indexes)
        return self._with_range(super().part(*args, indexes=bands, **kwargs), bands)

    def preview(self, indexes: Sequence[int] | None = None, **kwargs: Any) -> ImageData:
        bands = self.shown_bands(indexes)
        return self._with_range(super().preview(indexes=bands, **kwargs), bands)

    def shown_bands(self, indexes: Sequence[int] | None) -> tuple[int, ...]:
        """The requested bands; else the colours, or the first band if there are none."""
        count = self.dataset.count
        if indexes:
            if max(indexes) > count:
                raise Invalid(f"bidx: the raster has {count} bands, and no band {max(indexes)}")
            return tuple(indexes)
        bands = {colour: band for band, colour in enumerate(self.dataset.colorinterp, 1)}
        colours = (ColorInterp.red, ColorInterp.green, ColorInterp.blue)
        return tuple(bands[colour] for colour in colours) if all(colour in bands for colour in colours) else (1,)

    def ranges(self, bands: tuple[int, ...]) -> list[Range]:
        """The value range of each band without the extremes: the same for all tiles, whatever they show."""
        key = (self.input.identity, bands)
        if (ranges := _known_ranges.get(key)) is None:
            if len(_known_ranges) >= MAX_KNOWN_RANGES:
                _known_ranges.clear()
            sample = super().preview(indexes=bands, max_size=SAMPLE_PIXELS)
            ranges = _known_ranges[key] = [range_of(band.compressed()) for band in sample.array]
        return ranges

    def _with_range(self, image: ImageData, bands: tuple[int, ...]) -> ImageData:
        """Bytes and palettes are drawn unchanged."""
        has_colours = image.array.dtype == "uint8" or self.colormap
        image.dataset_statistics = None if has_colours else self.ranges(bands)
        return image


def range_of(values: Any) -> Range:
    """Values may be constant or missing."""
    values = values[np.isfinite(values)]
    if not values.size:
        return 0.0, 1.0
    low, high = map(float, np.percentile(values, PERCENTILES))
    return (low, high) if high > low else (low, low + 1)
