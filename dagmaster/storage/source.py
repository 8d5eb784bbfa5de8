"""A readable file, wherever it is."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Protocol

CHUNK_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Listed:
    """A file in a folder, by its reference."""

    reference: str
    size_bytes: int


class Read(Protocol):
    """The bytes from an offset on. `end` is how far the caller is going to read; there may be more."""

    def __call__(self, offset: int, end: int | None = None) -> AsyncIterator[bytes]: ...


@dataclass(frozen=True, slots=True)
class Source:
    """`identity` changes with the content."""

    size_bytes: int | None
    identity: str
    read: Read

    async def read_range(self, start: int, end: int) -> AsyncIterator[bytes]:
        """The bytes from `start` up to but excluding `end`."""
        remaining = end - start
        async for chunk in self.read(start, end):
            yield chunk[:remaining]
            remaining -= len(chunk)
            if remaining <= 0:
                return
