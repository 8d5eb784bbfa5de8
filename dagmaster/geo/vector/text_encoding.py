"""Detect the encoding of a file's text: UTF-8 if it is valid, then the declared one, then Latin-1."""

import codecs
from pathlib import Path
from typing import Final

from dagmaster.geo.errors import UnreadableVector
from dagmaster.geo.vector.formats import Format

UTF_8: Final = "UTF-8"
LATIN_1: Final = "ISO-8859-1"
CHUNK_BYTES: Final = 1024**2
_HEADER_LENGTH: Final = slice(8, 10)


def encoding_of(path: Path, kind: Format) -> str:
    """Other formats are always in UTF-8 or declare their encoding."""
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
        header_bytes = int.from_bytes(file.read(10)[_HEADER_LENGTH], "little")
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
