"""The client for asyncio."""

from types import TracebackType
from typing import Self

from dagmaster.client.requests import Requests
from dagmaster.client.transport import AsyncTransport


class AsyncClient(Requests):
    """`Client` with coroutines."""

    def __init__(self, url: str, key: str | None = None, *, timeout_seconds: float = 30, retries: int = 3) -> None:
        super().__init__(AsyncTransport(url, key, timeout_seconds), retries)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
