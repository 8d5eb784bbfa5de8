"""The gateway as an Azure Function: the same application as `dagmaster gateway`, behind the trigger of the host."""

import asyncio

import azure.functions as func

from dagmaster.gateway.app import create_app
from dagmaster.settings import load_settings


class StartOnce:
    """A cold host hands over several requests at once, and each would start the application."""

    def __init__(self, middleware: func.AsgiMiddleware) -> None:
        self._start = middleware.notify_startup
        self._lock = asyncio.Lock()
        self._is_started = False

    async def __call__(self) -> bool:
        async with self._lock:
            if not self._is_started:
                self._is_started = await self._start()
            return self._is_started


# Anonymous for the host: the gateway has keys of its own.
app = func.AsgiFunctionApp(create_app(load_settings()), func.AuthLevel.ANONYMOUS, "gateway")
app.middleware.notify_startup = StartOnce(app.middleware)  # type: ignore[method-assign]
