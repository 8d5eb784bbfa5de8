"""Settings become an orchestrator and a worker that run together or apart."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from dagmaster.data.configured import data_url
from dagmaster.engine.change_set import Rules
from dagmaster.errors import Misconfigured
from dagmaster.handlers import Registry
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.sealed import MIN_LENGTH
from dagmaster.orchestrator.callbacks import CallbackOptions
from dagmaster.orchestrator.chores import Intervals
from dagmaster.orchestrator.clock import DatabaseClock
from dagmaster.orchestrator.maintenance import RetentionOptions
from dagmaster.orchestrator.orchestrator import Orchestrator
from dagmaster.orchestrator.process import run_orchestrator
from dagmaster.orchestrator.watch import WatchOptions
from dagmaster.queues.postgres import PostgresTransport
from dagmaster.settings import Settings
from dagmaster.store.connect import opened
from dagmaster.store.notifications import MAIL, Notifier
from dagmaster.store.sealer import open_sealer
from dagmaster.tasklogs.factory import open_task_logs, remover
from dagmaster.url_policy import policy_of
from dagmaster.worker.options import WorkerOptions
from dagmaster.worker.worker import Worker


def rules_of(settings: Settings) -> Rules:
    return Rules(
        dispatch_timeout_seconds=settings.dispatch_timeout_seconds,
        timeout_grace_seconds=settings.timeout_grace_seconds,
        zombie_after_seconds=settings.zombie_after_seconds,
        default_job_timeout_seconds=settings.default_job_timeout_seconds,
        max_worker_deaths=settings.max_worker_deaths,
        max_fan_out=settings.max_fan_out,
        max_change_set_bytes=settings.max_batch_bytes,
        max_fan_in_bytes=settings.max_fan_in_bytes,
        max_result_bytes=settings.max_result_bytes,
        default_timeout_seconds=settings.default_task_timeout_seconds,
        default_retry=RetryPolicy(max_attempts=settings.default_max_retries),
        env=settings.template_env(),
    )


def intervals_of(settings: Settings) -> Intervals:
    return Intervals(
        heartbeat_seconds=settings.heartbeat_interval_seconds,
        orphan_scan_seconds=settings.orphan_scan_interval_seconds,
        orphan_threshold_seconds=settings.orphan_threshold_seconds,
        worker_lost_after_seconds=settings.worker_lost_after_seconds,
        callbacks=CallbackOptions(
            policy=policy_of(settings.callback_allowed_hosts, allow_http=settings.callback_allow_http),
            max_attempts=settings.callback_max_attempts,
            timeout_seconds=settings.callback_timeout_seconds,
            public_url=settings.public_url,
            gateway_url=settings.gateway_url,
            secret=settings.chosen_secret(),
        ),
        retention=RetentionOptions(settings.retention_days, settings.archive_dir, remover(settings)),
        data_retention_days=settings.data_retention_days,
        data_url=data_url(settings),
        external_dsn=settings.external_dsn(),
        watch=WatchOptions(
            stall_after_seconds=settings.stall_after_seconds,
            stuck_after_seconds=settings.stuck_after_seconds,
            max_queue_depth=settings.max_queue_depth,
            resume_queue_depth=settings.resume_queue_depth or settings.max_queue_depth,
        ),
    )


def worker_options(
    settings: Settings,
    queues: Sequence[str],
    concurrency: int | None,
    *,
    handlers: Sequence[str] | None = None,
    grace_seconds: float | None = None,
) -> WorkerOptions:
    """`handlers` are loaded in addition to those of the settings; `grace_seconds` is the default of
    `shutdown_grace_seconds`.
    """
    if grace_seconds is None or "shutdown_grace_seconds" in settings.model_fields_set:
        grace_seconds = settings.shutdown_grace_seconds
    if not queues:
        raise Misconfigured(
            "the worker has no queue to consume; name some with --queues a,b or set DAGMASTER_WORKER_QUEUES "
            "(or DAGMASTER_WORKER_QUEUE, the default queue of tasks)"
        )
    return WorkerOptions(
        queues=tuple(queues),
        concurrency=concurrency or settings.worker_concurrency,
        poll_interval_seconds=settings.poll_interval_seconds,
        heartbeat_interval_seconds=settings.worker_heartbeat_interval_seconds,
        lease_seconds=settings.worker_lost_after_seconds,
        shutdown_grace_seconds=grace_seconds,
        stop_within_seconds=settings.stop_within_seconds,
        max_output_bytes=settings.max_output_bytes,
        max_log_bytes=settings.log_max_bytes,
        handler_specs=(*settings.handlers, *(handlers or ())),
    )


@dataclass(slots=True)
class Fleet:
    """The orchestrator and the worker of this process."""

    notifier: Notifier
    orchestrator: Orchestrator | None
    worker: Worker | None
    ended: asyncio.Future[None]

    def wake(self) -> None:
        """A job was submitted, or a command was given to one."""
        self.notifier.notify(MAIL)
        if self.orchestrator is not None:
            self.orchestrator.check_mail()


@asynccontextmanager
async def fleet(
    dsn: str,
    settings: Settings,
    *,
    orchestrate: bool = False,
    work: WorkerOptions | None = None,
    registry: Registry | None = None,
    clock: DatabaseClock | None = None,
    make_worker: Callable[..., Worker] = Worker,
) -> AsyncIterator[Fleet]:
    """Start the roles, and stop them in order: the worker first, so that its last reports are still taken.

    `clock` and `make_worker` are for tests, which have their own of both.
    """
    notifier = Notifier(dsn)
    orchestrator = None
    if orchestrate:
        rules = await _with_sealed_env(dsn, rules_of(settings), settings)
        orchestrator = Orchestrator(rules, notifier, poll_interval_seconds=settings.poll_interval_seconds)
        orchestrator.clock = clock or orchestrator.clock
    worker = None
    transport = PostgresTransport(dsn, notifier, settings.chosen_secret())
    if work is not None and registry is not None:
        worker = make_worker(
            transport,
            registry,
            work,
            open_task_logs(settings),
            deliver=orchestrator.deliver if orchestrator is not None else None,
            mailed=orchestrator.check_mail if orchestrator is not None else None,
        )
        if orchestrator is not None:
            orchestrator.local = worker
    running = Fleet(notifier, orchestrator, worker, asyncio.get_running_loop().create_future())
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(background(notifier.run()))
        await stack.enter_async_context(aclosing(transport))
        if orchestrator is not None:
            stop, ready = asyncio.Event(), asyncio.Event()
            run = run_orchestrator(dsn, orchestrator, intervals_of(settings), notifier, stop, ready=ready)
            await stack.enter_async_context(_role(running, run, stop, ready))
        if worker is not None:
            stop = asyncio.Event()
            await stack.enter_async_context(_role(running, worker.run(stop), stop))
        yield running


async def _with_sealed_env(dsn: str, rules: Rules, settings: Settings) -> Rules:
    """`{{ env.NAME }}` of a secret name is a sealed reference: the value is in no row."""
    secret = [name for name in settings.secret_env if name in rules.env]
    if not secret:
        return rules
    async with opened(dsn, application="dagmaster orchestrator", busy_seconds=inf) as conn:
        sealer = await open_sealer(conn, settings.chosen_secret())
    for name in secret:
        if len(rules.env[name]) < MIN_LENGTH:
            raise Misconfigured(
                f"the secret {settings.template_env_prefix}{name} needs at least {MIN_LENGTH} characters"
            )
    return replace(rules, env={**rules.env, **{name: sealer.seal(rules.env[name]) for name in secret}})


@asynccontextmanager
async def background(*work: Awaitable[None]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(awaitable) for awaitable in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def _role(
    running: Fleet, run: Coroutine[Any, Any, None], stop: asyncio.Event, ready: asyncio.Event | None = None
) -> AsyncIterator[None]:
    """Run an orchestrator or a worker from `ready` on; at the end, stop it and wait for it."""
    task = asyncio.create_task(run)
    task.add_done_callback(lambda _: _end(running, task))
    try:
        if ready is not None:
            task.add_done_callback(lambda _: ready.set())
            await ready.wait()
            if task.done():
                await task
        yield
    finally:
        stop.set()
        await task


def _end(running: Fleet, task: "asyncio.Task[None]") -> None:
    """A role that ends unexpectedly ends the process."""
    if running.ended.done():
        return
    error = None if task.cancelled() else task.exception()
    if error is not None:
        running.ended.set_exception(error)
        running.ended.exception()  # Marks it as retrieved: no warning if nobody awaits it.
    else:
        running.ended.set_result(None)
