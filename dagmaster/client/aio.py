"""The client for programs with asyncio."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from httpx_sse import aconnect_sse

from dagmaster.client import calls, plans
from dagmaster.client.calls import Call
from dagmaster.client.connection import connection_options, headers_of, log_timeout
from dagmaster.client.errors import error_of, unreachable
from dagmaster.client.plans import Listen, Pause, Plan, Send, Stream
from dagmaster.errors import DagmasterError
from dagmaster.schemas.common import Page
from dagmaster.schemas.fleet import FleetStatus, HandlerOfFleet, QueueReply, WorkerReply
from dagmaster.schemas.jobs import JobCreated, JobReply, JobSteered, JobSummary
from dagmaster.schemas.nodes import JobProgress
from dagmaster.schemas.schedules import BackfillReply, ScheduleReply, SchedulesSynced, ScheduleTriggered
from dagmaster.schemas.signals import DecisionReply, SignalReply
from dagmaster.schemas.system import Explanation
from dagmaster.schemas.task_cache import CacheCleared
from dagmaster.schemas.timeline import GraphReply, LoggedNode, TimelineEntry, TimelineReply
from dagmaster.schemas.workers import WorkerWanted
from dagmaster.schemas.workflows import WorkflowList, WorkflowReply

T = TypeVar("T")


class AsyncClient:
    """As `Client`, to be awaited."""

    def __init__(self, url: str, key: str | None = None, *, timeout_seconds: float = 30, retries: int = 3) -> None:
        self._http = httpx.AsyncClient(**connection_options(url, key, timeout_seconds))
        self._retries = retries

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    # Jobs.

    async def submit(
        self,
        workflow_id: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        priority: int = 0,
        idempotency_key: str | None = None,
        correlation_id: str | None = None,
        submitted_by: str | None = None,
        callback_url: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> JobCreated:
        """Start a job. However often the request must be sent, it is one job."""
        options = {
            "priority": priority,
            "idempotency_key": idempotency_key,
            "correlation_id": correlation_id,
            "submitted_by": submitted_by,
            "callback_url": callback_url,
            "metadata": metadata,
        }
        return await self._ask(calls.submit(workflow_id, inputs, **options))

    async def job(self, job_id: int | str, *, children: bool = False) -> JobReply:
        return await self._ask(calls.job(job_id, children=children))

    async def jobs(
        self,
        *,
        status: str | None = None,
        workflow_id: str | None = None,
        submitted_by: str | None = None,
        correlation_id: str | None = None,
        id_prefix: str | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> Page[JobSummary]:
        """The newest first."""
        filters = {"workflow_id": workflow_id, "submitted_by": submitted_by, "correlation_id": correlation_id}
        filters["id_prefix"] = id_prefix
        return await self._ask(calls.jobs(status=status, limit=limit, offset=offset, **filters))

    async def wait(self, job_id: int | str, timeout_seconds: float | None = None) -> JobReply:
        """The job when it has ended, however that was. Raises TimedOut."""
        return await self._run(plans.waiting(job_id, self._retries, timeout_seconds))

    async def result(self, job_id: int | str, timeout_seconds: float | None = None) -> dict[str, Any]:
        """What the job's nodes put out. Waits for its end; raises JobFailed, JobCancelled or TimedOut."""
        return plans.outcome(await self.wait(job_id, timeout_seconds))

    async def stream(self, job_id: int | str, after: int | str | None = None) -> AsyncIterator[TimelineEntry]:
        """Everything that happens to the job, as it happens, until it has ended; a lost connection is made anew."""
        stream = Stream(job_id, self._retries, None if after is None else str(after))
        while not stream.has_ended:
            async with aclosing(self._events(stream)) as events:
                async for event in events:
                    yield event
            await self._run(stream.gone())

    async def cancel(self, job_id: int | str, reason: str | None = None) -> JobSteered:
        return await self._ask(calls.cancel(job_id, reason))

    async def pause(self, job_id: int | str, reason: str | None = None) -> JobSteered:
        return await self._ask(calls.pause(job_id, reason))

    async def resume(self, job_id: int | str) -> JobSteered:
        return await self._ask(calls.resume(job_id))

    async def retry(self, job_id: int | str, node_id: str | None = None) -> JobSteered:
        """Try again what has failed: one node, or all of the job."""
        return await self._ask(calls.retry(job_id, node_id))

    async def signal(self, job_id: int | str, name: str, data: Any = None) -> SignalReply:
        """Wake the nodes that wait for it; if none does, it is kept for the first that will."""
        return await self._ask(calls.signal(job_id, name, data))

    async def approve(self, job_id: int | str, node_id: str, comment: str | None = None) -> DecisionReply:
        """Let the job go on behind an approval."""
        return await self._ask(calls.decide(job_id, node_id, "approve", comment))

    async def reject(self, job_id: int | str, node_id: str, comment: str | None = None) -> DecisionReply:
        """Fail an approval for good."""
        return await self._ask(calls.decide(job_id, node_id, "reject", comment))

    async def timeline(
        self,
        job_id: int | str,
        *,
        node_id: str | None = None,
        event_types: Sequence[str] = (),
        after: int | str | None = None,
        limit: int = 1000,
    ) -> TimelineReply:
        """Oldest first; go on with `after=reply.next_after` while it `has_more`."""
        return await self._ask(
            calls.timeline(job_id, node_id=node_id, event_types=event_types, after=after, limit=limit)
        )

    async def graph(self, job_id: int | str) -> GraphReply:
        return await self._ask(calls.graph(job_id))

    async def progress(self, job_id: int | str) -> JobProgress:
        """How much of it is done, and when it may be over."""
        return await self._ask(calls.progress(job_id))

    async def explain(self, job_id: int | str, node_id: str | None = None) -> Explanation:
        """Why it does not go on."""
        return await self._ask(calls.explain(job_id, node_id))

    async def logged(self, job_id: int | str, *, limit: int = 50, offset: int = 0) -> Page[LoggedNode]:
        """Which nodes may have a log: what failed first, then what runs."""
        return await self._ask(calls.logged(job_id, limit=limit, offset=offset))

    async def logs(
        self,
        job_id: int | str,
        node_id: str,
        *,
        attempt: int | None = None,
        tail: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[str]:
        """What an attempt at a node, or else the newest, has printed and logged, in pieces.

        With `follow` it goes on while it is written; without an attempt also with those after it.
        """
        path, params = calls.logs(job_id, node_id, attempt=attempt, tail=tail, follow=follow)
        try:
            async with self._http.stream("GET", path, params=params, timeout=log_timeout(self._http, follow)) as answer:
                if not answer.is_success:
                    await answer.aread()
                    raise error_of(answer)
                async for piece in answer.aiter_text():
                    yield piece
        except httpx.TransportError as error:
            raise unreachable(error.request.url, error) from error

    # What there is.

    async def workflows(self) -> WorkflowList:
        return await self._ask(calls.workflows())

    async def workflow(self, workflow_id: str) -> WorkflowReply:
        return await self._ask(calls.workflow(workflow_id))

    async def schedules(self) -> list[ScheduleReply]:
        return await self._ask(calls.schedules())

    async def schedule(self, schedule_id: str) -> ScheduleReply:
        return await self._ask(calls.schedule(schedule_id))

    async def pause_schedule(self, schedule_id: str) -> ScheduleReply:
        """Let it start nothing more."""
        return await self._ask(calls.steer_schedule(schedule_id, "pause"))

    async def resume_schedule(self, schedule_id: str) -> ScheduleReply:
        """Let it go on with the next time that is still to come."""
        return await self._ask(calls.steer_schedule(schedule_id, "resume"))

    async def trigger_schedule(self, schedule_id: str) -> ScheduleTriggered:
        """Start a job now, as the schedule would."""
        return await self._ask(calls.trigger_schedule(schedule_id))

    async def sync_schedules(self, *, prune: bool = False) -> SchedulesSynced:
        """Have the server make the schedules what its workflows say."""
        return await self._ask(calls.sync_schedules(prune=prune))

    async def backfill(
        self, schedule_id: str, start: datetime, end: datetime, *, max_jobs: int = 1000, dry_run: bool = False
    ) -> BackfillReply:
        """Start the jobs of a range of time gone by that are not there yet, the oldest first."""
        return await self._ask(calls.backfill(schedule_id, start, end, max_jobs=max_jobs, dry_run=dry_run))

    async def workers(self, *, limit: int = 100, offset: int = 0) -> Page[WorkerReply]:
        return await self._ask(calls.workers(limit=limit, offset=offset))

    async def drain_worker(self, worker_id: str) -> WorkerWanted:
        """Give it no more tasks; what it runs may end."""
        return await self._ask(calls.steer_worker(worker_id, "drain"))

    async def stop_worker(self, worker_id: str) -> WorkerWanted:
        """Let it end as after SIGTERM."""
        return await self._ask(calls.steer_worker(worker_id, "stop"))

    async def resume_worker(self, worker_id: str) -> WorkerWanted:
        """Give a drained worker tasks again."""
        return await self._ask(calls.steer_worker(worker_id, "resume"))

    async def orchestrators(self) -> FleetStatus:
        return await self._ask(calls.orchestrators())

    async def clear_cache(self, handler: str | None = None) -> CacheCleared:
        """Forget the results of tasks that are kept for others, of one handler or of all."""
        return await self._ask(calls.clear_cache(handler))

    async def handlers(self) -> list[HandlerOfFleet]:
        """What workers have registered, with those that run it now."""
        return await self._ask(calls.handlers())

    async def queues(self) -> list[QueueReply]:
        return await self._ask(calls.queues())

    # The I/O.

    async def _ask(self, call: Call[T]) -> T:
        return await self._run(plans.asking(call, self._retries))

    async def _run(self, plan: Plan[T]) -> T:
        outcome: Any = None
        while True:
            try:
                step = plan.send(outcome)
            except StopIteration as end:
                answer: T = end.value
                return answer
            outcome = await self._do(step)

    async def _do(self, step: Send | Pause | Listen) -> Any:
        match step:
            case Send(call):
                return await self._send(call)
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case Listen(stream):
                async with aclosing(self._events(stream)) as events:
                    async for _ in events:
                        if stream.is_late():
                            break
        return None

    async def _send(self, call: Call[Any]) -> httpx.Response | httpx.TransportError:
        try:
            return await self._http.request(
                call.method, call.path, params=call.params, content=call.content, headers=headers_of(call)
            )
        except httpx.TransportError as error:
            return error

    async def _events(self, stream: Stream) -> AsyncGenerator[TimelineEntry, None]:
        """Of one connection, until it ends or is lost."""
        try:
            async with aconnect_sse(self._http, **stream.request(self._http.timeout)) as source:
                if source.response.is_error:
                    await source.response.aread()
                stream.opened(source.response)
                async for said in source.aiter_sse():
                    yield stream.take(said)
        except (httpx.TransportError, DagmasterError) as error:
            stream.lose(error)
