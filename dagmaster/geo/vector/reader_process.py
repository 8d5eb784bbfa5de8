"""The process that opens untrusted files: it reads one layer and writes it to standard output as an Arrow stream.

It has the drivers of one format and no network (see `reader.py`), and can be killed at any time.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pyogrio
from pyogrio.errors import DataSourceError
from pyogrio.raw import open_arrow

BATCH_ROWS: Final = 16_384
# In the metadata of the schema: the file's description of the layer, as JSON.
LAYER_KEY: Final = b"dagmaster:layer"
# The exit code after a rejection, with the reason on standard error.
REFUSED: Final = 3
CSV_OPTIONS: Final = {
    "X_POSSIBLE_NAMES": "lon,long,longitude,lng,x,easting",
    "Y_POSSIBLE_NAMES": "lat,latitude,y,northing",
    "GEOM_POSSIBLE_NAMES": "wkt,geometry,geom,the_geom",
    "KEEP_GEOM_COLUMNS": "NO",
    "AUTODETECT_TYPE": "YES",
}


def main() -> None:
    request = json.loads(sys.argv[1])
    path = Path(request["path"])
    try:
        opened = _open_parquet(path) if request["format"] == "geoparquet" else _open_gdal(path, request)
        with opened as (schema, layer, batches):
            _write(schema.with_metadata({LAYER_KEY: json.dumps(layer).encode()}), batches)
    except (DataSourceError, pa.ArrowException, ValueError, KeyError, RuntimeError) as error:
        _refuse(str(error).replace(str(path), path.name))


def _write(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    with pa.ipc.new_stream(sys.stdout.buffer, schema) as stream:
        for batch in batches:
            stream.write_batch(batch.cast(schema) if batch.schema != schema else batch)


def _refuse(message: str) -> NoReturn:
    sys.stderr.write(message)
    sys.exit(REFUSED)


@contextmanager
def _open_gdal(path: Path, request: dict[str, Any]) -> Iterator[tuple[Any, dict[str, Any], Any]]:
    options: dict[str, Any] = CSV_OPTIONS if request["format"] == "csv" else {}
    layer = _choose_layer(path, request["layer"])
    count = pyogrio.read_info(path, layer=layer)["features"]
    encoding = request["encoding"] if request["format"] == "shapefile" else None
    with open_arrow(path, layer=layer, encoding=encoding, batch_size=BATCH_ROWS, use_pyarrow=True, **options) as (
        meta,
        reader,
    ):
        column = meta["geometry_name"] or "wkb_geometry"
        if column not in reader.schema.names:
            is_csv = request["format"] == "csv"
            advice = "name the columns lon and lat, x and y, or wkt" if is_csv else "choose a layer that has some"
            _refuse(f"{path.name} has no geometries; {advice}")
        about = {"name": layer, "crs": meta["crs"], "features": count, "geometry": column}
        yield reader.schema, about, reader


def _choose_layer(path: Path, name: str | None) -> str:
    layers = [
        str(layer) for layer, geometry in pyogrio.list_layers(path) if geometry is not None or path.suffix == ".csv"
    ]
    if name is not None:
        if name not in layers:
            _refuse(f"{path.name} has no layer {name!r}; it has: {_listed(layers)}")
        return name
    if len(layers) != 1:
        _refuse(f"{path.name} has {len(layers)} layers with geometries; choose one with `layer`: {_listed(layers)}")
    return layers[0]


def _listed(names: list[str]) -> str:
    return ", ".join(name[:80] for name in names[:20]) or "none"


@contextmanager
def _open_parquet(path: Path) -> Iterator[tuple[Any, dict[str, Any], Any]]:
    # Mapped: otherwise all pages that were read would stay in memory until the end.
    with pq.ParquetFile(path, memory_map=True) as file:
        geo = json.loads((file.schema_arrow.metadata or {}).get(b"geo", b"null"))
        if not isinstance(geo, dict):
            _refuse(f"{path.name} is Parquet without the metadata of GeoParquet")
        column = geo["primary_column"]
        described = geo["columns"][column]
        if described["encoding"] != "WKB":
            _refuse(f"{path.name} has geometries in {described['encoding']!r}; write them as WKB")
        covering = described.get("covering", {}).get("bbox", {}).get("xmin", [None])[0]
        names = [name for name in file.schema_arrow.names if name != covering]
        schema = pa.schema([file.schema_arrow.field(name) for name in names])
        # A missing CRS in the metadata means longitude and latitude; null means unknown.
        crs = described.get("crs", "OGC:CRS84")
        about = {
            "name": path.stem,
            "crs": json.dumps(crs) if isinstance(crs, dict) else crs,
            "features": file.metadata.num_rows,
            "geometry": column,
        }
        yield schema, about, file.iter_batches(batch_size=BATCH_ROWS, columns=names)
