"""Open untrusted GeoTIFFs, and nothing else."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import rasterio
from rasterio.errors import NotGeoreferencedWarning, RasterioIOError

from dagmaster.geo.errors import UnreadableRaster

# Classic and BigTIFF, in both byte orders.
TIFF_SIGNATURES: Final = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
CACHE_MB: Final = 256
GDAL_OPTIONS: Final = {
    "GDAL_CACHEMAX": CACHE_MB,
    # No sidecar files: neither read untrusted ones, nor write statistics.
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
    "GDAL_PAM_ENABLED": "NO",
    "GDAL_TIFF_INTERNAL_MASK": True,
}


def check_signature(path: Path) -> None:
    """Raises UnreadableRaster unless the file starts with a TIFF signature.

    GDAL would choose a driver by content: the text of a VRT or of a WMS service in a `.tif` makes it read other local
    files, or call other hosts.
    """
    if not path.is_file():
        raise UnreadableRaster(f"there is no file {path.name}")
    with path.open("rb") as file:
        signature = file.read(4)
    if signature not in TIFF_SIGNATURES:
        raise UnreadableRaster(f"{path.name} is not a TIFF file: it begins with {signature!r}")


@contextmanager
def open_geotiff(path: Path, cache_mb: int = CACHE_MB) -> Iterator[Any]:
    """Open the dataset with the GeoTIFF driver only."""
    check_signature(path)
    with rasterio.Env(**{**GDAL_OPTIONS, "GDAL_CACHEMAX": cache_mb}), warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)  # Validation reports it.
        try:
            dataset = rasterio.open(path, driver="GTiff")
        except RasterioIOError as error:
            raise UnreadableRaster(f"{path.name} cannot be opened: {describe(error, path)}") from error
        with dataset:
            yield dataset


def describe(error: Exception, path: Path) -> str:
    """GDAL's message without local folders."""
    return str(error.__cause__ or error).replace(str(path), path.name)
