"""Large responses: built outside the event loop and sent in pieces."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from fastapi import Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

# Building a smaller response takes less time than handing it to a thread.
LARGE_BYTES = 256 * 1024
PIECE_BYTES = 256 * 1024

M = TypeVar("M", bound=BaseModel)


async def answer(make: Callable[[], M], size: int) -> M | Response:
    """`size` is an estimate in bytes."""
    if size <= LARGE_BYTES:
        return make()
    content = await asyncio.to_thread(lambda: make().model_dump_json().encode())
    headers = {"content-length": str(len(content))}
    return StreamingResponse(_pieces(content), media_type="application/json", headers=headers)


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    view = memoryview(content)
    for start in range(0, len(content), PIECE_BYTES):
        yield bytes(view[start : start + PIECE_BYTES])
