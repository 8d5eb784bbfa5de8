"""A file that is to be read, wherever it is."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

CHUNK_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Source:
    """`identity` changes with the content; `read` starts at an offset."""

    size_bytes: int | None
    identity: str
    read: Callable[[int], AsyncIterator[bytes]]
