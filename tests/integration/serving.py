"""A whole installation with HTTP in a thread; tests use it like any other client."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from fleet import handlers
from ports import held_port

from dagmaster.authoring.catalog import Catalog
from dagmaster.authoring.yaml import QueueRules
from dagmaster.cli.api_server import serving
from dagmaster.fleet import fleet, worker_options
from dagmaster.settings import load_settings
from dagmaster.web.server import bind, url_of


class Server:
    """A server that can be stopped and restarted at the same address."""

    def __init__(
        self, dsn: str, workflows: Path, port: int, *, works: bool = True, **functions: Callable[..., Any]
    ) -> None:
        self._dsn, self._workflows, self._works, self._known = dsn, workflows, works, handlers(**functions)
        self._port = port
        self.url = ""

    def start(self) -> None:
        ready = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=[ready])
        self._thread.start()
        assert ready.wait(60)
        if self._failed:
            raise self._failed[0]

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def _run(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as error:  # noqa: BLE001 - raised by `start`
            self._failed.append(error)
        finally:
            ready.set()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        settings = load_settings(poll_interval_seconds=0.1, worker_queue="q", shutdown_grace_seconds=1)
        catalog = Catalog(self._workflows, queues=QueueRules(self._known.queues(), "q"))
        listener = bind("127.0.0.1", self._port)
        self.url = url_of(listener)
        async with AsyncExitStack() as stack:
            work = worker_options(settings, ["q"], 8) if self._works else None
            roles = fleet(self._dsn, settings, orchestrate=self._works, work=work, registry=self._known)
            running = await stack.enter_async_context(roles)
            await stack.enter_async_context(serving(self._dsn, settings, running, listener, catalog, self._known))
            ready.set()
            await self._stop.wait()


@contextmanager
def server(dsn: str, workflows: Path, *, works: bool = True, **functions: Callable[..., Any]) -> Iterator[Server]:
    """Includes an orchestrator and a worker of queue `q`, unless `works` is false."""
    with held_port() as port:  # Nobody else is given it while the server is stopped.
        started = Server(dsn, workflows, int(port), works=works, **functions)
        started.start()
        try:
            yield started
        finally:
            started.stop()
