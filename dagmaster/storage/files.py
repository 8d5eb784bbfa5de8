"""Files of this machine: read in chunks, written beside their place and then moved there."""

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
    found = stat(location)

    async def read(offset: int, end: int | None = None) -> AsyncIterator[bytes]:
        size = CHUNK_BYTES if end is None else min(CHUNK_BYTES, end - offset)
        with location.path.open("rb") as file:
            file.seek(offset)
            while chunk := await asyncio.to_thread(file.read, size):
                yield chunk

    return Source(found.st_size, f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}", read)


def walk(folder: LocalFile) -> Iterator[Listed]:
    """The files below a folder, by their paths. Hidden ones are left out, as unfinished copies are, and links."""
    for path in sorted(folder.path.rglob("*")):
        below = path.relative_to(folder.path)
        if not any(part.startswith(".") for part in below.parts) and path.is_file() and not path.is_symlink():
            yield Listed(f"{folder.reference}/{below.as_posix()}", path.stat().st_size)


def remove(location: LocalFile) -> bool:
    """False where there is no such file."""
    try:
        location.path.unlink()
    except FileNotFoundError:
        return False
    return True


@contextmanager
def partial_file(target: Path, identity: str) -> Iterator[IO[bytes]]:
    """The unfinished copy of what has this identity, at its end. It stays when the copy is interrupted.

    Who finds it in use by another copy gets a file of its own: the same task may run twice.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    name = f".{target.name}.{sha256(identity.encode()).hexdigest()[:12]}.part"
    with target.with_name(name).open("a+b") as shared:
        try:
            fcntl.flock(shared, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_ours = False
        else:
            # Whoever had it may have moved it to its place in the meantime.
            is_ours = target.with_name(name).exists() and os.path.samestat(
                os.fstat(shared.fileno()), target.with_name(name).stat()
            )
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
