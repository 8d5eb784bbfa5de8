"""Local files: read in chunks, written to a temporary name and then renamed."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

from dagmaster.storage.errors import FileMissing
from dagmaster.storage.references import LocalFile
from dagmaster.storage.source import CHUNK_BYTES, Listed, Source


def stat(location: LocalFile) -> os.stat_result:
    if not location.path.is_file():
        raise FileMissing(f"there is no file {location.reference}")
    return location.path.stat()


def head(location: LocalFile) -> Source:
    status = stat(location)

    async def read(offset: int, end: int | None = None) -> AsyncIterator[bytes]:
        size = CHUNK_BYTES if end is None else min(CHUNK_BYTES, end - offset)
        with location.path.open("rb") as file:
            file.seek(offset)
            while chunk := await asyncio.to_thread(file.read, size):
                yield chunk

    return Source(status.st_size, f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}", read)


def walk(folder: LocalFile) -> Iterator[Listed]:
    """The files below a folder, by path. Hidden files, such as unfinished copies, and links are left out."""
    paths = sorted(folder.path.iterdir()) if folder.path.is_dir() else []
    for path in paths:
        reference = f"{folder.reference}/{path.name}"
        if path.name.startswith(".") or path.is_symlink():
            continue
        if path.is_dir():
            yield from walk(LocalFile(path, reference))
        elif path.is_file():
            yield Listed(reference, path.stat().st_size)


def remove(location: LocalFile) -> bool:
    """False if there is no such file."""
    try:
        location.path.unlink()
    except FileNotFoundError:
        return False
    return True


@contextmanager
def partial_file(target: Path, identity: str) -> Iterator[IO[bytes]]:
    """The unfinished copy of the source with this identity, opened at its end. It stays if the copy is interrupted.

    If another copy is using it, the caller gets its own file: the same task may run twice.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    name = f".{target.name}.{sha256(identity.encode()).hexdigest()[:12]}.part"
    with target.with_name(name).open("a+b") as shared:
        try:
            fcntl.flock(shared, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The former holder may have renamed it in the meantime.
            is_ours = os.path.samestat(os.fstat(shared.fileno()), target.with_name(name).stat())
        except (BlockingIOError, FileNotFoundError):
            is_ours = False
        if is_ours:
            shared.seek(0)
            yield shared
            return
    with NamedTemporaryFile(dir=target.parent, prefix=".", suffix=".part", delete=False) as own:
        try:
            yield own
        except BaseException:
            Path(own.name).unlink(missing_ok=True)
            raise
