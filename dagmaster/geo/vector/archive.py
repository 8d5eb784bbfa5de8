"""Unpack a zipped layer: only known files, into one folder, within limits."""

import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final
from zipfile import BadZipFile, ZipFile, ZipInfo

from dagmaster.geo.errors import UnreadableVector
from dagmaster.geo.vector.formats import EXTENSIONS

MAX_UNPACKED_BYTES: Final = 16 * 1024**3
MAX_MEMBERS: Final = 10_000
# For large members: deflate reaches 1032, real attribute tables stay far below.
MAX_RATIO: Final = 200
LARGE_BYTES: Final = 64 * 1024**2
CHUNK_BYTES: Final = 1024**2
SHAPEFILE_PARTS: Final = (".shx", ".dbf", ".prj", ".cpg")
_DATABASE_SUFFIX: Final = ".gdb"


def unpack(archive: Path, folder: Path, *, max_bytes: int = MAX_UNPACKED_BYTES) -> Path:
    """Unpack the only layer file of the archive below `folder`, and return it; a file geodatabase is a folder.

    Raises UnreadableVector for archives with none or several, or beyond the limits.
    """
    try:
        with ZipFile(archive) as opened:
            members = [member for member in opened.infolist() if not member.is_dir() and not _is_hidden(member)]
            _check_sizes(archive, members, max_bytes)
            target = _choose(archive, members)
            folder.mkdir(parents=True, exist_ok=True)
            places = {place: member for member in members if (place := _place_of(member, target)) is not None}
            for place, member in places.items():
                _extract(opened, member, folder / place)
    except (BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise UnreadableVector(f"{archive.name} cannot be unpacked: {error}") from error
    return folder / target.name


def _is_hidden(member: ZipInfo) -> bool:
    path = PurePosixPath(member.filename)
    return "__MACOSX" in path.parts or path.name.startswith(".")


def _check_sizes(archive: Path, members: list[ZipInfo], max_bytes: int) -> None:
    total = sum(member.file_size for member in members)
    if len(members) > MAX_MEMBERS or total > max_bytes:
        raise UnreadableVector(
            f"{archive.name} holds {len(members)} files of {total} bytes; the limits are {MAX_MEMBERS} and {max_bytes}"
        )
    for member in members:
        if member.file_size > LARGE_BYTES and member.file_size > MAX_RATIO * member.compress_size:
            raise UnreadableVector(
                f"{archive.name} is refused: {member.filename[:80]} unpacks to {member.file_size} bytes"
            )


def _choose(archive: Path, members: Iterable[ZipInfo]) -> PurePosixPath:
    layers = {layer for member in members if (layer := _layer_of(PurePosixPath(member.filename))) is not None}
    # Tables and JSON documents often accompany a layer.
    layers = {layer for layer in layers if layer.suffix.lower() not in (".csv", ".json")} or layers
    if len(layers) != 1:
        names = ", ".join(sorted(str(layer)[:80] for layer in layers)[:10]) or "none"
        raise UnreadableVector(f"{archive.name} should hold one layer file; it holds: {names}")
    return layers.pop()


def _layer_of(path: PurePosixPath) -> PurePosixPath | None:
    """The file itself, or the file geodatabase that contains it."""
    for place in (path, *path.parents):
        if place.suffix.lower() == _DATABASE_SUFFIX:
            return place
    return path if path.suffix.lower() in EXTENSIONS else None


def _place_of(member: ZipInfo, target: PurePosixPath) -> PurePosixPath | None:
    """Where it is unpacked; None if it is neither the layer file nor a companion file."""
    path = PurePosixPath(member.filename)
    if target.suffix.lower() == _DATABASE_SUFFIX:
        return PurePosixPath(target.name, path.name) if path.parent == target else None
    if path == target:
        return PurePosixPath(target.name)
    is_sibling = path.parent == target.parent and path.stem.lower() == target.stem.lower()
    is_part = is_sibling and target.suffix.lower() == ".shp" and path.suffix.lower() in SHAPEFILE_PARTS
    return PurePosixPath(f"{target.stem}{path.suffix.lower()}") if is_part else None


def _extract(opened: ZipFile, member: ZipInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with opened.open(member) as source, path.open("wb") as file:
        shutil.copyfileobj(source, file, CHUNK_BYTES)
    if path.stat().st_size != member.file_size:
        raise UnreadableVector(f"{path.name} is not as large as the archive says")
