"""Compare a COG with the raster that it was made of: every pixel of every block, by GDAL's own reader."""

import struct
from hashlib import file_digest
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from rasterio.windows import Window
from rio_cogeo.cogeo import cog_validate

ROWS = 512
BIGTIFF, CLASSIC_END = b"II+\0", 2**32
# Averages of four values are rounded once, those of GDAL at another place.
TOLERANCE = 1e-3


def check_cog(cog: Path, source: Path, checksum: str) -> int:
    """The number of blocks that were read, those of the overviews included. Raises AssertionError."""
    with cog.open("rb") as file:
        assert f"sha256:{file_digest(file, 'sha256').hexdigest()}" == checksum, "the checksum differs"
    is_valid, errors, warnings = cog_validate(cog, strict=True)
    assert is_valid, f"{errors} {warnings}"
    with rasterio.open(source) as before, rasterio.open(cog) as after:
        assert (before.shape, before.crs, before.transform) == (after.shape, after.crs, after.transform)
        for window in _strips(before):
            np.testing.assert_array_equal(before.read(window=window), after.read(window=window))
        blocks, overviews = _count_blocks(after), after.overviews(1)
    return blocks + sum(_check_overview(cog, level) for level in range(len(overviews)))


def _strips(dataset: Any) -> list[Window]:
    width, height = dataset.width, dataset.height
    return [Window(0, row, width, min(ROWS, height - row)) for row in range(0, height, ROWS)]


def _count_blocks(dataset: Any) -> int:
    down, across = dataset.block_shapes[0]
    return int(-(-dataset.height // down) * -(-dataset.width // across))


def _check_overview(cog: Path, level: int) -> int:
    """Each block is read; those in the first strip are compared with the level that they are averages of."""
    finer_options = {} if level == 0 else {"overview_level": level - 1}
    with rasterio.open(cog, overview_level=level) as reduced, rasterio.open(cog, **finer_options) as finer:
        for window in _strips(reduced):
            reduced.read(window=window)
        height, width = min(ROWS, finer.height // 2), finer.width // 2
        whole = finer.read(1, window=Window(0, 0, 2 * width, 2 * height)).astype("float64")
        expected = whole.reshape(height, 2, width, 2).mean(axis=(1, 3))
        np.testing.assert_allclose(
            reduced.read(1, window=Window(0, 0, width, height)), expected, atol=TOLERANCE, rtol=1e-6
        )
        return _count_blocks(reduced)


def last_offset(cog: Path) -> int:
    """Where the block in the last corner begins, as GDAL reads the directory."""
    with rasterio.open(cog) as dataset:
        down, across = dataset.block_shapes[0]
        row, column = (dataset.height - 1) // down, (dataset.width - 1) // across
        return int(dataset.get_tag_item(f"BLOCK_OFFSET_{column}_{row}", "TIFF", bidx=1))


def is_bigtiff(path: Path) -> bool:
    with path.open("rb") as file:
        (_, version) = struct.unpack("<2sH", file.read(4))
    return bool(version == 43)
