"""The fleet of a job under test: an orchestrator with an adjustable clock, and a worker that injects faults."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dagmaster.authoring.implicit import own_queue
from dagmaster.authoring.preparation import Find, prepare, queues_of
from dagmaster.engine.messages import TaskLost
from dagmaster.fleet import Fleet, fleet, worker_options
from dagmaster.handlers import Handler, Registry
from dagmaster.ids import JobId
from dagmaster.model.workflow import Workflow
from dagmaster.queues.contract import TaskMessage
from dagmaster.service.context import ServiceContext
from dagmaster.service.submission import new_job, store_job
from dagmaster.settings import Settings, load_settings
from dagmaster.store.connect import opened
from dagmaster.store.mail_codec import encode
from dagmaster.store.mailbox import add_mail
from dagmaster.store.submission import NewJob
from dagmaster.testing.clock import TravelClock, skip_waiting
from dagmaster.testing.decisions import APPLICATION, Decisions
from dagmaster.testing.faults import Faults, FaultyWorker

# Settings of a short-lived fleet that leaves no trace; those that workflows see are not changed.
OWN_SETTINGS: Mapping[str, Any] = {
    "poll_interval_seconds": 0.1,
    "shutdown_grace_seconds": 0,
    "stop_within_seconds": 0.5,
    "retention_days": None,
    "archive_dir": None,
    "log_url": None,
}


def stage_settings(dsn: str, log_dir: Path, chosen: Mapping[str, Any]) -> Settings:
    return load_settings(**{**OWN_SETTINGS, "database_url": dsn, "log_dir": log_dir, **chosen})


@dataclass(slots=True)
class Stage:
    dsn: str
    settings: Settings
    clock: TravelClock
    handlers: dict[str, Handler]
    handler_specs: tuple[str, ...] = ()
    faults: Faults = field(default_factory=Faults)
    decisions: Decisions = field(default_factory=Decisions)

    def registry(self) -> Registry:
        known = Registry()
        for handler in self.handlers.values():
            known.register(handler)
        return known

    @asynccontextmanager
    async def running(
        self, workflow: Workflow, inputs: Mapping[str, Any], find: Find
    ) -> AsyncIterator[tuple[Fleet, JobId]]:
        """The fleet, and the job that was submitted to it. `find` returns the workflows that it calls."""
        registry = self.registry()
        graph = prepare(workflow, self.settings, registry.contracts(), find)
        job = new_job(graph, inputs, self.settings, submitted_by="test")
        submitted: asyncio.Future[JobId] = asyncio.get_running_loop().create_future()
        queues = {own_queue(self.settings)}.union(*(queues_of(part.workflow) for part in (graph, *graph.called)))
        async with fleet(
            self.dsn,
            self.settings,
            orchestrate=True,
            work=worker_options(self.settings, sorted(queues), None, handlers=self.handler_specs),
            registry=registry,
            clock=self.clock,
            make_worker=partial(FaultyWorker, job_id=submitted, faults=self.faults, lose=self._lose),
        ) as running:
            job_id = await self._submit(job, running)
            submitted.set_result(job_id)
            async with self._accompanied(running, job_id):
                yield running, job_id

    async def _submit(self, job: NewJob, running: Fleet) -> JobId:
        assert running.orchestrator is not None
        owner_id = running.orchestrator.me.instance_id
        async with opened(self.dsn, application=APPLICATION) as conn:
            context = ServiceContext(conn, self.settings, "test", owner_id=owner_id, wake=running.wake)
            return (await store_job(context, job)).job_id

    @asynccontextmanager
    async def _accompanied(self, running: Fleet, job_id: JobId) -> AsyncIterator[None]:
        """Skip waiting times and decide approvals while the job runs; any thread may advance the clock."""
        orchestrator, loop = running.orchestrator, asyncio.get_running_loop()
        assert orchestrator is not None
        forget = self.clock.on_skip(lambda: loop.call_soon_threadsafe(orchestrator.interrupt))
        company = [
            asyncio.create_task(self.decisions.tell(self.dsn, job_id, orchestrator)),
            asyncio.create_task(skip_waiting(orchestrator, self.clock, self.decisions)),
        ]
        for companion in company:
            companion.add_done_callback(partial(_pass_on, running))
        try:
            yield
        finally:
            forget()
            for companion in company:
                companion.cancel()
            await asyncio.gather(*company, return_exceptions=True)

    async def _lose(self, message: TaskMessage, worker_id: str) -> None:
        """Report this attempt as lost, as for a dead worker."""
        lost = TaskLost(message.node_id, message.task_id, worker_id, self.clock.now())
        async with opened(self.dsn, application=APPLICATION) as conn:
            await add_mail(conn, [encode(message.job_id, lost)])
            await conn.execute("NOTIFY dagmaster_mail")


def _pass_on(running: Fleet, ended: "asyncio.Task[None]") -> None:
    """Pass errors to the caller that waits for the job, such as a decision by a user who is not an approver."""
    if not ended.cancelled() and (error := ended.exception()) is not None and not running.ended.done():
        running.ended.set_exception(error)
        running.ended.exception()
