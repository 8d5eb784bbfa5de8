"""The requests to a server, shared by both clients."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from time import monotonic
from typing import Any, TypeVar

import httpx

from dagmaster.client import calls
from dagmaster.client.asset_requests import AssetRequests
from dagmaster.client.call import PREFIX, Call, chosen, get, job_path, quoted, reader, schedule_path
from dagmaster.client.errors import JobCancelled, JobFailed, TimedOut, error_of, unreachable
from dagmaster.client.event_stream import LONGEST_PAUSE_SECONDS, PATIENCE_SECONDS, EventStream, pauses
from dagmaster.client.transport import Transport
from dagmaster.errors import Unavailable
from dagmaster.model.shapes import read_box
from dagmaster.model.states import JOB_TERMINAL, JobStatus
from dagmaster.schemas.common import Page
from dagmaster.schemas.fleet import FleetStatus, HandlerOfFleet, QueueReply, QueuesReply, WorkerReply
from dagmaster.schemas.jobs import JobCreated, JobReply, JobRetried, JobSteered, JobSummary
from dagmaster.schemas.nodes import JobProgress
from dagmaster.schemas.schedules import (
    BackfillReply,
    ScheduleList,
    ScheduleReply,
    SchedulesSynced,
    ScheduleTriggered,
    SyncSchedules,
)
from dagmaster.schemas.signals import DecisionReply, SignalReply
from dagmaster.schemas.system import Explanation
from dagmaster.schemas.task_cache import CacheCleared
from dagmaster.schemas.timeline import GraphReply, LoggedNode, TimelineEntry, TimelineReply
from dagmaster.schemas.workers import WorkerWanted
from dagmaster.schemas.workflows import WorkflowList, WorkflowReply
from dagmaster.service.contract import BackfillRequest, Cancel, Decide, Pause, Resume, Retry, Signal, SubmitRequest

T = TypeVar("T")

TRY_AGAIN = frozenset({502, 503, 504})


class Requests(AssetRequests):
    """Requests that are safe to repeat are retried when the server is unreachable or overloaded."""

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
        """Submit a job. A repeated request creates only one job."""
        request = SubmitRequest(
            workflow_id,
            inputs or {},
            priority=priority,
            submitted_by=submitted_by or "",
            correlation_id=correlation_id,
            idempotency_key=idempotency_key,
            callback_url=callback_url,
            metadata=metadata or {},
        )
        return await self.ask(calls.submit(request))

    async def job(self, job_id: int | str, *, children: bool = False) -> JobReply:
        return await self.ask(get(JobReply, job_path(job_id), children=children or None))

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
        """Newest first."""
        filters = {"workflow_id": workflow_id, "submitted_by": submitted_by, "correlation_id": correlation_id}
        filters |= {"status": status, "id_prefix": id_prefix}
        return await self.ask(get(Page[JobSummary], f"{PREFIX}/jobs", limit=limit, offset=offset, **filters))

    async def wait(self, job_id: int | str, timeout_seconds: float | None = None) -> JobReply:
        """The job after it has ended, successful or not. Raises TimedOut."""
        deadline = monotonic() + timeout_seconds if timeout_seconds is not None else None
        job = await self.job(job_id)
        stream = EventStream(job_id, self._retries, deadline=deadline)
        while job.status not in JOB_TERMINAL:
            await self._listen(stream)
            if not stream.has_news:
                await self._transport.sleep(stream.pause_seconds())
            if stream.is_late():
                raise TimedOut(f"job {job_id} is {job.status} after {timeout_seconds:g} s; it is still running")
            job = await self._ask_patiently(job_id, stream)
        return job

    async def result(self, job_id: int | str, timeout_seconds: float | None = None) -> dict[str, Any]:
        """The outputs of the job's nodes. Waits for the job to end; raises JobFailed, JobCancelled or TimedOut."""
        job = await self.wait(job_id, timeout_seconds)
        if job.status is JobStatus.FAILED:
            raise JobFailed(job)
        if job.status is JobStatus.CANCELLED:
            raise JobCancelled(job)
        return job.result_data or {}

    async def stream(self, job_id: int | str, after: int | str | None = None) -> AsyncGenerator[TimelineEntry, None]:
        """The events of the job as they happen, until it ends. Reconnects when the connection is lost."""
        stream = EventStream(job_id, self._retries, None if after is None else str(after))
        has_ended = False
        while True:
            async with aclosing(self._transport.events(stream)) as events:
                async for event in events:
                    yield event
            if stream.has_ended() or (has_ended and stream.lost is None):
                return
            if stream.lost is None:
                # Events up to the job's end are still to be read.
                has_ended = (await self.job(job_id)).status in JOB_TERMINAL
            if not stream.has_news:
                await self._transport.sleep(stream.pause_seconds())

    async def cancel(self, job_id: int | str, reason: str | None = None) -> JobSteered:
        return await self.ask(calls.control(job_id, Cancel(reason)))

    async def pause(self, job_id: int | str, reason: str | None = None) -> JobSteered:
        return await self.ask(calls.control(job_id, Pause(reason)))

    async def resume(self, job_id: int | str) -> JobSteered:
        return await self.ask(calls.control(job_id, Resume()))

    async def retry(
        self, job_id: int | str, node_id: str | None = None, *, bbox: Sequence[float] | None = None
    ) -> JobRetried:
        """Retry the failed nodes of the job, one of them, or those that intersect a box: west, south, east, north."""
        box = read_box(bbox) if bbox is not None else None
        return await self.ask(calls.retry(job_id, Retry(node_id, box)))

    async def signal(self, job_id: int | str, name: str, data: Any = None) -> SignalReply:
        """Wake the nodes that wait for the signal; if none does, it is kept for the first that will."""
        return await self.ask(calls.signal(job_id, Signal(name, data)))

    async def approve(self, job_id: int | str, node_id: str, comment: str | None = None) -> DecisionReply:
        """Let the job continue after an approval."""
        return await self.ask(calls.decide(job_id, Decide(node_id, True, comment)))

    async def reject(self, job_id: int | str, node_id: str, comment: str | None = None) -> DecisionReply:
        """Reject an approval; its node fails without retries."""
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
        """Oldest first; continue with `after=reply.next_after` while it `has_more`."""
        types = ",".join(event_types) or None
        path = f"{job_path(job_id, node_id)}/timeline"
        return await self.ask(get(TimelineReply, path, event_types=types, after=after, limit=limit))

    async def graph(self, job_id: int | str) -> GraphReply:
        return await self.ask(get(GraphReply, f"{job_path(job_id)}/graph"))

    async def progress(self, job_id: int | str) -> JobProgress:
        """The progress of the job, and its estimated end."""
        return await self.ask(get(JobProgress, f"{job_path(job_id)}/progress"))

    async def explain(self, job_id: int | str, node_id: str | None = None) -> Explanation:
        """Why the job or node waits."""
        return await self.ask(get(Explanation, f"{job_path(job_id, node_id)}/explain"))

    async def logged(self, job_id: int | str, *, limit: int = 50, offset: int = 0) -> Page[LoggedNode]:
        """Nodes that may have a log: failed ones first, then running ones."""
        return await self.ask(get(Page[LoggedNode], f"{job_path(job_id)}/logs", limit=limit, offset=offset))

    async def logs(
        self,
        job_id: int | str,
        node_id: str,
        *,
        attempt: int | None = None,
        tail: int | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[str, None]:
        """The output of an attempt at a node, by default the newest, in pieces.

        With `follow`, continue while the log is written and, without `attempt`, with later attempts.
        """
        path, params = f"{job_path(job_id, node_id)}/logs", chosen(attempt=attempt, tail=tail, follow=follow or None)
        async with aclosing(self._transport.text(path, params, follow=follow)) as pieces:
            async for piece in pieces:
                yield piece

    # Workflows, schedules and the fleet.

    async def workflows(self) -> WorkflowList:
        return await self.ask(get(WorkflowList, f"{PREFIX}/workflows"))

    async def workflow(self, workflow_id: str) -> WorkflowReply:
        return await self.ask(get(WorkflowReply, f"{PREFIX}/workflows/{quoted(workflow_id)}"))

    async def schedules(self) -> list[ScheduleReply]:
        return (await self.ask(get(ScheduleList, f"{PREFIX}/schedules"))).schedules

    async def schedule(self, schedule_id: str) -> ScheduleReply:
        return await self.ask(get(ScheduleReply, schedule_path(schedule_id)))

    async def pause_schedule(self, schedule_id: str) -> ScheduleReply:
        """Start no more jobs."""
        return await self.ask(calls.control_schedule(schedule_id, "pause"))

    async def resume_schedule(self, schedule_id: str) -> ScheduleReply:
        """Start jobs again, from the next time on."""
        return await self.ask(calls.control_schedule(schedule_id, "resume"))

    async def trigger_schedule(self, schedule_id: str) -> ScheduleTriggered:
        """Start a job now, as the schedule would."""
        return await self.ask(Call("POST", f"{schedule_path(schedule_id)}/trigger", reader(ScheduleTriggered)))

    async def sync_schedules(self, *, prune: bool = False) -> SchedulesSynced:
        """Have the server update the schedules from its workflows."""
        body = SyncSchedules(prune=prune)
        return await self.ask(
            Call("POST", f"{PREFIX}/schedules/sync", reader(SchedulesSynced), body=body, is_safe=True)
        )

    async def backfill(
        self, schedule_id: str, start: datetime, end: datetime, *, max_jobs: int = 1000, dry_run: bool = False
    ) -> BackfillReply:
        """Start the missing jobs of a past range of time, oldest first."""
        return await self.ask(calls.backfill(schedule_id, BackfillRequest(start, end, max_jobs, dry_run)))

    async def workers(self, *, status: str | None = None, limit: int = 100, offset: int = 0) -> Page[WorkerReply]:
        return await self.ask(get(Page[WorkerReply], f"{PREFIX}/workers", status=status, limit=limit, offset=offset))

    async def drain_worker(self, worker_id: str) -> WorkerWanted:
        """Give it no more tasks; its running tasks continue."""
        return await self.ask(calls.control_worker(worker_id, "drain"))

    async def stop_worker(self, worker_id: str) -> WorkerWanted:
        """Stop it, as SIGTERM does."""
        return await self.ask(calls.control_worker(worker_id, "stop"))

    async def resume_worker(self, worker_id: str) -> WorkerWanted:
        """Give a drained worker tasks again."""
        return await self.ask(calls.control_worker(worker_id, "resume"))

    async def orchestrators(self) -> FleetStatus:
        return await self.ask(get(FleetStatus, f"{PREFIX}/orchestrator/status"))

    async def clear_cache(self, handler: str | None = None) -> CacheCleared:
        """Remove the cached results of one handler, or of all."""
        params = chosen(handler=handler)
        return await self.ask(Call("DELETE", f"{PREFIX}/cache", reader(CacheCleared), params, is_safe=True))

    async def handlers(self) -> list[HandlerOfFleet]:
        """The handlers that workers have registered, with the workers that run them now."""
        handlers: list[HandlerOfFleet] = []
        while True:
            page = await self.ask(get(Page[HandlerOfFleet], f"{PREFIX}/handlers", limit=1000, offset=len(handlers)))
            handlers += page.items
            if not page.has_more:
                return handlers

    async def queues(self) -> list[QueueReply]:
        return (await self.ask(get(QueuesReply, f"{PREFIX}/queues/status"))).queues

    # Transport.

    async def ask(self, call: Call[T]) -> T:
        """The response; raises the error of the server, or Unavailable."""
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
        """Read one connection until it ends or the deadline passes."""
        async with aclosing(self._transport.events(stream)) as events:
            async for _ in events:
                if stream.is_late():
                    break

    async def _ask_patiently(self, job_id: int | str, stream: EventStream) -> JobReply:
        """Retry: a server that was reachable a moment ago will be back."""
        began = monotonic()
        while True:
            try:
                return await self.job(job_id)
            except Unavailable as error:
                if stream.is_late():
                    raise TimedOut(f"job {job_id} has not ended in time; its state is unknown: {error}") from error
                if monotonic() - began > PATIENCE_SECONDS:
                    raise
            await self._transport.sleep(stream.pause_seconds())


def _retry_after(response: httpx.Response) -> float:
    seconds = response.headers.get("Retry-After", "")
    return min(float(seconds), LONGEST_PAUSE_SECONDS) if seconds.isdecimal() else 0.0
