"""Both clients: for programs with and without asyncio."""

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from dagmaster.client.coroutines import complete, iterate
from dagmaster.client.requests import Requests
from dagmaster.client.transport import AsyncTransport, BlockingTransport

P = ParamSpec("P")
T = TypeVar("T")


class AsyncClient(Requests):
    """`Client` with coroutines."""

    def __init__(self, url: str, key: str | None = None, *, timeout_seconds: float = 30, retries: int = 3) -> None:
        super().__init__(AsyncTransport(url, key, timeout_seconds), retries)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _blocking(
    method: Callable[Concatenate[Requests, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Client", P], T]:
    @wraps(method)
    def call(client: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return complete(method(client.requests, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[Requests, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate["Client", P], Iterator[T]]:
    @wraps(method)
    def call(client: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return iterate(method(client.requests, *args, **kwargs))

    return call


class Client:
    """A client of one server. Requests that are safe to repeat are retried if it is unreachable or overloaded."""

    def __init__(self, url: str, key: str | None = None, *, timeout_seconds: float = 30, retries: int = 3) -> None:
        self._transport = BlockingTransport(url, key, timeout_seconds)
        self.requests = Requests(self._transport, retries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    close = _blocking(Requests.close)

    submit = _blocking(Requests.submit)
    job = _blocking(Requests.job)
    jobs = _blocking(Requests.jobs)
    wait = _blocking(Requests.wait)
    result = _blocking(Requests.result)
    stream = _iterating(Requests.stream)
    cancel = _blocking(Requests.cancel)
    pause = _blocking(Requests.pause)
    resume = _blocking(Requests.resume)
    retry = _blocking(Requests.retry)
    signal = _blocking(Requests.signal)
    approve = _blocking(Requests.approve)
    reject = _blocking(Requests.reject)
    timeline = _blocking(Requests.timeline)
    graph = _blocking(Requests.graph)
    progress = _blocking(Requests.progress)
    explain = _blocking(Requests.explain)
    logged = _blocking(Requests.logged)
    logs = _iterating(Requests.logs)
    workflows = _blocking(Requests.workflows)
    workflow = _blocking(Requests.workflow)
    schedules = _blocking(Requests.schedules)
    schedule = _blocking(Requests.schedule)
    pause_schedule = _blocking(Requests.pause_schedule)
    resume_schedule = _blocking(Requests.resume_schedule)
    trigger_schedule = _blocking(Requests.trigger_schedule)
    sync_schedules = _blocking(Requests.sync_schedules)
    backfill = _blocking(Requests.backfill)
    workers = _blocking(Requests.workers)
    drain_worker = _blocking(Requests.drain_worker)
    stop_worker = _blocking(Requests.stop_worker)
    resume_worker = _blocking(Requests.resume_worker)
    orchestrators = _blocking(Requests.orchestrators)
    clear_cache = _blocking(Requests.clear_cache)
    handlers = _blocking(Requests.handlers)
    queues = _blocking(Requests.queues)

    submit_version = _blocking(Requests.submit_version)
    request = _blocking(Requests.request)
    assets = _blocking(Requests.assets)
    asset = _blocking(Requests.asset)
    asset_history = _blocking(Requests.asset_history)
    approve_version = _blocking(Requests.approve_version)
    reject_version = _blocking(Requests.reject_version)
    clear_asset = _blocking(Requests.clear_asset)
    expose_asset = _blocking(Requests.expose_asset)
    delete_asset = _blocking(Requests.delete_asset)
    delete_version = _blocking(Requests.delete_version)
    reprocess_version = _blocking(Requests.reprocess_version)
    platforms = _blocking(Requests.platforms)
    add_platform = _blocking(Requests.add_platform)
    layers = _blocking(Requests.layers)
    publish_layer = _blocking(Requests.publish_layer)
    publish_layers = _blocking(Requests.publish_layers)
    unpublish_layer = _blocking(Requests.unpublish_layer)
