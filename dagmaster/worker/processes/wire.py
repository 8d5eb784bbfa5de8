"""The frames between worker, fork server and children: a JSON head and a binary body."""

import asyncio
import socket
import struct
from dataclasses import dataclass
from typing import Any

import orjson

LENGTHS = struct.Struct("!II")
# To the fork server: fork (with two descriptors), or kill a child and its process group.
REQUEST = struct.Struct("!ci")
FORK, KILL = b"F", b"K"


@dataclass(frozen=True, slots=True)
class Frame:
    head: dict[str, Any]
    body: bytes = b""


def pack(head: dict[str, Any], body: bytes = b"") -> bytes:
    encoded = orjson.dumps(head)
    return b"".join((LENGTHS.pack(len(encoded), len(body)), encoded, body))


async def read(reader: asyncio.StreamReader) -> Frame | None:
    """Read a frame; None at the end of the stream."""
    try:
        head_length, body_length = LENGTHS.unpack(await reader.readexactly(LENGTHS.size))
        content = await reader.readexactly(head_length + body_length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return Frame(orjson.loads(content[:head_length]), content[head_length:])


def receive(sock: socket.socket) -> Frame | None:
    """Read a frame, blocking."""
    lengths = _exactly(sock, LENGTHS.size)
    if lengths is None:
        return None
    head_length, body_length = LENGTHS.unpack(lengths)
    content = _exactly(sock, head_length + body_length)
    return None if content is None else Frame(orjson.loads(content[:head_length]), content[head_length:])


def _exactly(sock: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        chunk = sock.recv(count - len(parts))
        if not chunk:
            return None
        parts += chunk
    return bytes(parts)
