"""The gateway as an Azure Function: the same application as `dagmaster gateway`, with an HTTP trigger."""

import asyncio

import azure.functions as func

from dagmaster.gateway.app import create_app
from dagmaster.settings import load_settings


class StartOnce:
    """Starts the application once, although a cold host may send several requests at the same time."""

    def __init__(self, middleware: func.AsgiMiddleware) -> None:
        self._start = middleware.notify_startup
        self._lock = asyncio.Lock()
        self._is_started = False

    async def __call__(self) -> bool:
        async with self._lock:
            if not self._is_started:
                self._is_started = await self._start()
            return self._is_started


# Anonymous for the host: the gateway checks its own keys.
app = func.AsgiFunctionApp(create_app(load_settings()), func.AuthLevel.ANONYMOUS, "gateway")
app.middleware.notify_startup = StartOnce(app.middleware)  # type: ignore[method-assign]
