"""What can be asked of a server, once for both clients."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from time import monotonic
from typing import Any, TypeVar

import httpx

from dagmaster.client import calls
from dagmaster.client.asset_requests import AssetRequests
from dagmaster.client.call import Call
from dagmaster.client.errors import JobCancelled, JobFailed, TimedOut, error_of, unreachable
from dagmaster.client.event_stream import LONGEST_PAUSE_SECONDS, PATIENCE_SECONDS, EventStream, pauses
from dagmaster.client.transport import Transport
from dagmaster.errors import Unavailable
from dagmaster.model.states import JOB_TERMINAL, JobStatus
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
from dagmaster.service.contract import BackfillRequest, Cancel, Decide, Pause, Resume, Retry, Signal

T = TypeVar("T")

TRY_AGAIN = frozenset({502, 503, 504})


class Requests(AssetRequests):
    """`retries` are made where asking twice does no harm, when the server cannot be reached or is overloaded."""

    def __init__(self, transport: Transport, retries: int) -> None:
        self._transport, self._retries = transport, retries

    async def close(self) -> None:
        await self._transport.close()

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
        return await self.ask(calls.submit(workflow_id, inputs, **options))

    async def job(self, job_id: int | str, *, children: bool = False) -> JobReply:
        return await self.ask(calls.job(job_id, children=children))

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
        return await self.ask(calls.jobs(status=status, limit=limit, offset=offset, **filters))

    async def wait(self, job_id: int | str, timeout_seconds: float | None = None) -> JobReply:
        """The job when it has ended, however that was. Raises TimedOut."""
        deadline = monotonic() + timeout_seconds if timeout_seconds is not None else None
        job = await self.job(job_id)
        stream = EventStream(job_id, self._retries, deadline=deadline)
        while job.status not in JOB_TERMINAL:
            await self._listen(stream)
            if not stream.has_news:
                await self._transport.sleep(stream.pause_seconds())
            if stream.is_late():
                raise TimedOut(f"job {job_id} is {job.status} after {timeout_seconds:g} s; it goes on")
            job = await self._ask_patiently(job_id, stream)
        return job

    async def result(self, job_id: int | str, timeout_seconds: float | None = None) -> dict[str, Any]:
        """What the job's nodes put out. Waits for its end; raises JobFailed, JobCancelled or TimedOut."""
        return _outcome(await self.wait(job_id, timeout_seconds))

    async def stream(self, job_id: int | str, after: int | str | None = None) -> AsyncGenerator[TimelineEntry, None]:
        """Everything that happens to the job, as it happens, until it has ended; a lost connection is opened again."""
        stream = EventStream(job_id, self._retries, None if after is None else str(after))
        has_ended = False
        while True:
            async with aclosing(self._transport.events(stream)) as events:
                async for event in events:
                    yield event
            if stream.is_at_an_end or (has_ended and not stream.was_lost):
                return
            if not stream.was_lost:
                # What ended the job while we asked is still to be read.
                has_ended = (await self.job(job_id)).status in JOB_TERMINAL
            if not stream.has_news:
                await self._transport.sleep(stream.pause_seconds())

    async def cancel(self, job_id: int | str, reason: str | None = None) -> JobSteered:
        return await self.ask(calls.control(job_id, Cancel(reason)))

    async def pause(self, job_id: int | str, reason: str | None = None) -> JobSteered:
        return await self.ask(calls.control(job_id, Pause(reason)))

    async def resume(self, job_id: int | str) -> JobSteered:
        return await self.ask(calls.control(job_id, Resume()))

    async def retry(self, job_id: int | str, node_id: str | None = None) -> JobSteered:
        """Try again what has failed: one node, or all of the job."""
        return await self.ask(calls.control(job_id, Retry(node_id)))

    async def signal(self, job_id: int | str, name: str, data: Any = None) -> SignalReply:
        """Wake the nodes that wait for it; if none does, it is kept for the first that will."""
        return await self.ask(calls.signal(job_id, Signal(name, data)))

    async def approve(self, job_id: int | str, node_id: str, comment: str | None = None) -> DecisionReply:
        """Let the job go on behind an approval."""
        return await self.ask(calls.decide(job_id, Decide(node_id, True, comment)))

    async def reject(self, job_id: int | str, node_id: str, comment: str | None = None) -> DecisionReply:
        """Fail an approval for good."""
        return await self.ask(calls.decide(job_id, Decide(node_id, False, comment)))

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
        return await self.ask(
            calls.timeline(job_id, node_id=node_id, event_types=event_types, after=after, limit=limit)
        )

    async def graph(self, job_id: int | str) -> GraphReply:
        return await self.ask(calls.graph(job_id))

    async def progress(self, job_id: int | str) -> JobProgress:
        """How much of it is done, and when it may be over."""
        return await self.ask(calls.progress(job_id))

    async def explain(self, job_id: int | str, node_id: str | None = None) -> Explanation:
        """Why it does not go on."""
        return await self.ask(calls.explain(job_id, node_id))

    async def logged(self, job_id: int | str, *, limit: int = 50, offset: int = 0) -> Page[LoggedNode]:
        """Which nodes may have a log: what failed first, then what runs."""
        return await self.ask(calls.logged(job_id, limit=limit, offset=offset))

    async def logs(
        self,
        job_id: int | str,
        node_id: str,
        *,
        attempt: int | None = None,
        tail: int | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[str, None]:
        """What an attempt at a node, or else the newest, has printed and logged, in pieces.

        With `follow` it goes on while it is written; without an attempt also with those after it.
        """
        path, params = calls.logs(job_id, node_id, attempt=attempt, tail=tail, follow=follow)
        async with aclosing(self._transport.text(path, params, follow=follow)) as pieces:
            async for piece in pieces:
                yield piece

    # What there is.

    async def workflows(self) -> WorkflowList:
        return await self.ask(calls.workflows())

    async def workflow(self, workflow_id: str) -> WorkflowReply:
        return await self.ask(calls.workflow(workflow_id))

    async def schedules(self) -> list[ScheduleReply]:
        return await self.ask(calls.schedules())

    async def schedule(self, schedule_id: str) -> ScheduleReply:
        return await self.ask(calls.schedule(schedule_id))

    async def pause_schedule(self, schedule_id: str) -> ScheduleReply:
        """Let it start nothing more."""
        return await self.ask(calls.control_schedule(schedule_id, "pause"))

    async def resume_schedule(self, schedule_id: str) -> ScheduleReply:
        """Let it go on with the next time that is still to come."""
        return await self.ask(calls.control_schedule(schedule_id, "resume"))

    async def trigger_schedule(self, schedule_id: str) -> ScheduleTriggered:
        """Start a job now, as the schedule would."""
        return await self.ask(calls.trigger_schedule(schedule_id))

    async def sync_schedules(self, *, prune: bool = False) -> SchedulesSynced:
        """Have the server make the schedules what its workflows say."""
        return await self.ask(calls.sync_schedules(prune=prune))

    async def backfill(
        self, schedule_id: str, start: datetime, end: datetime, *, max_jobs: int = 1000, dry_run: bool = False
    ) -> BackfillReply:
        """Start the jobs of a range of time gone by that are not there yet, the oldest first."""
        return await self.ask(calls.backfill(schedule_id, BackfillRequest(start, end, max_jobs, dry_run)))

    async def workers(self, *, limit: int = 100, offset: int = 0) -> Page[WorkerReply]:
        return await self.ask(calls.workers(limit=limit, offset=offset))

    async def drain_worker(self, worker_id: str) -> WorkerWanted:
        """Give it no more tasks; what it runs may end."""
        return await self.ask(calls.control_worker(worker_id, "drain"))

    async def stop_worker(self, worker_id: str) -> WorkerWanted:
        """Let it end as after SIGTERM."""
        return await self.ask(calls.control_worker(worker_id, "stop"))

    async def resume_worker(self, worker_id: str) -> WorkerWanted:
        """Give a drained worker tasks again."""
        return await self.ask(calls.control_worker(worker_id, "resume"))

    async def orchestrators(self) -> FleetStatus:
        return await self.ask(calls.orchestrators())

    async def clear_cache(self, handler: str | None = None) -> CacheCleared:
        """Forget the results of tasks that are kept for others, of one handler or of all."""
        return await self.ask(calls.clear_cache(handler))

    async def handlers(self) -> list[HandlerOfFleet]:
        """What workers have registered, with those that run it now."""
        return await self.ask(calls.handlers())

    async def queues(self) -> list[QueueReply]:
        return await self.ask(calls.queues())

    # How it is asked.

    async def ask(self, call: Call[T]) -> T:
        """The answer; raises the error of the server, or Unavailable."""
        waits = pauses()
        for left in range(self._retries if call.is_safe else 0, -1, -1):
            try:
                response = await self._transport.send(call)
            except httpx.TransportError as error:
                if not left:
                    raise unreachable(error.request.url, error) from error
                await self._transport.sleep(next(waits))
                continue
            if not left or response.status_code not in TRY_AGAIN:
                break
            await self._transport.sleep(max(next(waits), _retry_after(response)))
        if not response.is_success:
            raise error_of(response)
        return call.read(response.content)

    async def _listen(self, stream: EventStream) -> None:
        """To one connection, until it ends or the time is over."""
        async with aclosing(self._transport.events(stream)) as events:
            async for _ in events:
                if stream.is_late():
                    break

    async def _ask_patiently(self, job_id: int | str, stream: EventStream) -> JobReply:
        """A server that was there a moment ago comes back."""
        began = monotonic()
        while True:
            try:
                return await self.job(job_id)
            except Unavailable as error:
                if stream.is_late():
                    raise TimedOut(f"job {job_id} has not ended in time, as far as is known: {error}") from error
                if monotonic() - began > PATIENCE_SECONDS:
                    raise
            await self._transport.sleep(stream.pause_seconds())


def _retry_after(response: httpx.Response) -> float:
    seconds = response.headers.get("Retry-After", "")
    return min(float(seconds), LONGEST_PAUSE_SECONDS) if seconds.isdecimal() else 0.0


def _outcome(job: JobReply) -> dict[str, Any]:
    match job.status:
        case JobStatus.FAILED:
            raise JobFailed(job)
        case JobStatus.CANCELLED:
            raise JobCancelled(job)
        case _:
            return job.result_data or {}
