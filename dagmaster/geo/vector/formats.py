"""The accepted formats of vector files, detected by their content."""

from enum import StrEnum
from pathlib import Path
from typing import Final

from dagmaster.geo.errors import UnreadableVector


class Format(StrEnum):
    SHAPEFILE = "shapefile"
    GEOPACKAGE = "geopackage"
    GEOJSON = "geojson"
    GEOPARQUET = "geoparquet"
    FLATGEOBUF = "flatgeobuf"
    KML = "kml"
    CSV = "csv"
    FILE_GEODATABASE = "file_geodatabase"


# The only GDAL drivers that are enabled for such a file. GeoParquet is read by pyarrow.
DRIVERS: Final = {
    Format.SHAPEFILE: ("ESRI Shapefile",),
    Format.GEOPACKAGE: ("GPKG",),
    Format.GEOJSON: ("GeoJSON",),
    Format.GEOPARQUET: (),
    Format.FLATGEOBUF: ("FlatGeobuf",),
    Format.KML: ("LIBKML",),
    Format.CSV: ("CSV",),
    Format.FILE_GEODATABASE: ("OpenFileGDB",),
}
EXTENSIONS: Final = {
    ".shp": Format.SHAPEFILE,
    ".gpkg": Format.GEOPACKAGE,
    ".geojson": Format.GEOJSON,
    ".json": Format.GEOJSON,
    ".parquet": Format.GEOPARQUET,
    ".geoparquet": Format.GEOPARQUET,
    ".fgb": Format.FLATGEOBUF,
    ".kml": Format.KML,
    ".csv": Format.CSV,
    ".gdb": Format.FILE_GEODATABASE,
}
ZIP_SIGNATURE: Final = b"PK\x03\x04"
HEAD_BYTES: Final = 64 * 1024
_GEODATABASE_CATALOG: Final = "a00000001.gdbtable"
_SIGNATURES: Final = {
    Format.SHAPEFILE: (b"\x00\x00\x27\x0a",),
    Format.GEOPACKAGE: (b"SQLite format 3\x00",),
    Format.GEOPARQUET: (b"PAR1",),
    Format.FLATGEOBUF: (b"fgb\x03",),
}
# GeoJSON is recognised by its first keys. Other JSON, such as a GDAL pipeline, is not accepted.
_GEOJSON_MARKS: Final = (b'"FeatureCollection"', b'"Feature"', b'"features"')


def is_zip(path: Path) -> bool:
    return path.is_file() and _head(path).startswith(ZIP_SIGNATURE)


def detect(path: Path) -> Format:
    """By extension and content, which must agree.

    GDAL would decide by content alone: the text of a VRT or of a pipeline in a `.geojson` makes it read other local
    files, or call other hosts.
    """
    extension = path.suffix.lower()
    if (kind := EXTENSIONS.get(extension)) is None:
        accepted = ", ".join(sorted({*EXTENSIONS, ".zip"}))
        raise UnreadableVector(f"{path.name}: the extension must be one of {accepted}")
    if kind is Format.FILE_GEODATABASE:
        if not (path / _GEODATABASE_CATALOG).is_file():
            raise UnreadableVector(f"{path.name} is not a file geodatabase: send its folder as a zip file")
        return kind
    if not path.is_file():
        raise UnreadableVector(f"there is no file {path.name}")
    if not _agrees(kind, _head(path)):
        raise UnreadableVector(f"{path.name} does not hold {kind}: its content is of another format")
    return kind


def _agrees(kind: Format, head: bytes) -> bool:
    if signatures := _SIGNATURES.get(kind):
        return head.startswith(signatures)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if kind is Format.GEOJSON:
        return text.startswith(b"{") and any(mark in text for mark in _GEOJSON_MARKS)
    if kind is Format.KML:
        return text.startswith(b"<") and b"<kml" in text
    return bool(text) and b"\0" not in text and not text.startswith((b"<", b"{"))


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)
