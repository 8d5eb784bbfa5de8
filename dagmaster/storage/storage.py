"""Stat, list, read and copy files, wherever they are."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, assert_never

from dagmaster.settings import Settings
from dagmaster.storage import files, objects
from dagmaster.storage.errors import ReferenceRefused, StorageUnavailable
from dagmaster.storage.references import LocalFile, Location, RemoteObject, WebFile, Zones
from dagmaster.storage.source import CHUNK_BYTES, Listed, Source

OnProgress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Copied:
    """`reference` names the copy; `resumed_at` is the number of bytes that an earlier attempt had copied."""

    reference: str
    size_bytes: int
    sha256: str
    resumed_at: int = 0


class Storage:
    def __init__(self, zones: Zones) -> None:
        self._zones = zones

    def locate(self, reference: str) -> Location:
        """Raises ReferenceRefused if it leads out of the configured storage."""
        return self._zones.locate(reference)

    def local_path(self, reference: str) -> Path:
        """The file's path on this machine; raises ReferenceRefused if the file is elsewhere."""
        location = self.locate(reference)
        if not isinstance(location, LocalFile):
            raise ReferenceRefused(f"{location.reference} is not on this machine; copy it to the zone mount first")
        return location.path

    async def size(self, reference: str) -> int:
        source = await self.source(self.locate(reference))
        if source.size_bytes is None:
            raise StorageUnavailable(f"the server does not say how large {reference.partition('?')[0]} is")
        return source.size_bytes

    async def read(self, reference: str) -> AsyncIterator[bytes]:
        """The bytes of a file, in chunks."""
        source = await self.source(self.locate(reference))
        async for chunk in source.read(0):
            yield chunk

    async def list(self, folder: str, *, limit: int) -> list[Listed]:
        """The files below a folder or in a zone, at most `limit`. A missing folder has none."""
        match self._zones.locate_folder(folder):
            case LocalFile() as location:
                return await asyncio.to_thread(list, islice(files.walk(location), limit))
            case RemoteObject() as location:
                listed = []
                async for file in objects.walk(location):
                    listed.append(file)
                    if len(listed) == limit:
                        break
                return listed
            case WebFile() as location:
                raise ReferenceRefused(f"{location.reference}: the files of a web server cannot be listed")

    async def remove(self, reference: str) -> bool:
        """False if there is no such file."""
        match self.locate(reference):
            case LocalFile() as location:
                return await asyncio.to_thread(files.remove, location)
            case RemoteObject() as location:
                return await objects.remove(location)
            case WebFile() as location:
                raise ReferenceRefused(f"{location.reference}: files of a web server cannot be removed")

    async def copy(self, source: str, target: str, on_progress: OnProgress | None = None) -> Copied:
        """Copy in chunks, with the checksum of all bytes. A copy to this machine resumes an interrupted one.

        The target is replaced atomically when the copy is complete.
        """
        origin = self.locate(source)
        return await self._put(_Counting(await self.source(origin), origin.reference, on_progress), target)

    async def write(self, target: str, content: bytes) -> Copied:
        """The target is replaced atomically."""

        async def read(offset: int, end: int | None = None) -> AsyncIterator[bytes]:
            for start in range(offset, len(content), CHUNK_BYTES):
                yield content[start : start + CHUNK_BYTES]
                await asyncio.sleep(0)  # Between chunks, other coroutines go on.

        return await self._put(_Counting(Source(len(content), "", read), target), target)

    async def _put(self, counting: "_Counting", target: str) -> Copied:
        destination = self.locate(target)
        match destination:
            case LocalFile():
                await _write_file(counting, destination.path)
            case RemoteObject():
                await objects.put(destination, counting.chunks())
            case WebFile():
                raise ReferenceRefused(f"{destination.reference}: files cannot be written to a web server")
            case _:
                assert_never(destination)
        return Copied(destination.reference, counting.size_bytes, counting.digest.hexdigest(), counting.resumed_at)

    async def source(self, location: Location) -> Source:
        """Raises FileMissing or StorageUnavailable."""
        match location:
            case LocalFile():
                return files.head(location)
            case RemoteObject():
                return await objects.head(location)
            case WebFile():
                # Imported on demand: httpx would slow down the start of every short command.
                from dagmaster.storage import web  # noqa: PLC0415

                return await web.head(location)
            case _:
                assert_never(location)


class _Counting:
    """Counts and hashes the bytes of a copy."""

    def __init__(self, source: Source, reference: str, on_progress: OnProgress | None = None) -> None:
        self.source, self.reference = source, reference
        self.digest = sha256()
        self.size_bytes = 0
        self.resumed_at = 0
        self._on_progress = on_progress

    def take(self, part: Any) -> None:
        """Resume from an earlier attempt's bytes, unless the source may have changed."""
        if not self.source.identity or (self.source.size_bytes or 0) < os.fstat(part.fileno()).st_size:
            part.truncate(0)
        while chunk := part.read(CHUNK_BYTES):
            self._count(chunk)
        self.resumed_at = self.size_bytes

    async def chunks(self) -> AsyncIterator[bytes]:
        """Raises StorageUnavailable for a source that ends early: then the target is not replaced."""
        async for chunk in self.source.read(self.size_bytes):
            self._count(chunk)
            yield chunk
        expected = self.source.size_bytes
        if expected is not None and self.size_bytes != expected:
            raise StorageUnavailable(f"{self.reference} ended after {self.size_bytes} of {expected} bytes")

    def _count(self, chunk: bytes) -> None:
        self.digest.update(chunk)
        self.size_bytes += len(chunk)
        if self._on_progress is not None:
            self._on_progress(self.size_bytes, self.source.size_bytes)


async def _write_file(counting: _Counting, path: Path) -> None:
    with files.partial_file(path, counting.source.identity) as part:
        counting.take(part)
        async for chunk in counting.chunks():
            part.write(chunk)
        part.flush()
        os.fsync(part.fileno())
        Path(part.name).replace(path)


def open_storage(settings: Settings) -> Storage:
    return Storage(Zones.of(settings))
