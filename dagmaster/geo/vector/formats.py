"""The accepted formats of vector files and the encodings of their text, both detected by content."""

import codecs
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
UTF_8: Final = "UTF-8"
LATIN_1: Final = "ISO-8859-1"
CHUNK_BYTES: Final = 1024**2
_DBF_HEADER_LENGTH: Final = slice(8, 10)
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


def encoding_of(path: Path, kind: Format) -> str:
    """UTF-8 if the text is valid, then the declared encoding, then Latin-1.

    Formats without text files are always in UTF-8 or declare their encoding.
    """
    if kind is Format.SHAPEFILE:
        return _of_shapefile(path)
    if kind in (Format.GEOJSON, Format.CSV):
        return UTF_8 if _is_utf_8(path) else LATIN_1
    return UTF_8


def check_encoding(name: str) -> None:
    try:
        codecs.lookup(name)
    except (LookupError, ValueError) as error:
        raise UnreadableVector(f"encoding: {name[:40]!r} is no encoding; write it as UTF-8 or ISO-8859-1") from error


def transcode(path: Path, encoding: str, target: Path) -> Path:
    """A copy in UTF-8: the readers of text formats support no other encoding."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open(encoding=encoding, newline="") as source, target.open("w", encoding=UTF_8, newline="") as copy:
            while text := source.read(CHUNK_BYTES):
                copy.write(text)
    except UnicodeDecodeError as error:
        raise UnreadableVector(f"{path.name} is not in {encoding}") from error
    return target


def _of_shapefile(path: Path) -> str:
    table = path.with_suffix(".dbf")
    if not table.is_file():
        return UTF_8
    with table.open("rb") as file:
        header_bytes = int.from_bytes(file.read(10)[_DBF_HEADER_LENGTH], "little")
    if _is_utf_8(table, header_bytes):
        return UTF_8
    page = path.with_suffix(".cpg")
    name = page.read_text(encoding="ascii", errors="replace").strip() if page.is_file() else ""
    return _codec_name(name) or LATIN_1


def _codec_name(name: str) -> str | None:
    """The name for GDAL and Python; `.cpg` files may also hold code page numbers. None for UTF-8, already ruled out."""
    name = f"CP{name}" if name.isdigit() else name
    try:
        codec = codecs.lookup(name).name
    except (LookupError, ValueError):
        return None
    return None if codec == "utf-8" else name


def _is_utf_8(path: Path, offset: int = 0) -> bool:
    decoder = codecs.getincrementaldecoder(UTF_8)()
    with path.open("rb") as file:
        file.seek(offset)
        try:
            while chunk := file.read(CHUNK_BYTES):
                decoder.decode(chunk)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True
