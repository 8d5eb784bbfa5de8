"""The client for programs without asyncio."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from time import sleep
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from httpx_sse import connect_sse

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


class Client:
    """One server. `retries` are made where asking twice does no harm, when it cannot be reached or is overloaded."""

    def __init__(self, url: str, key: str | None = None, *, timeout_seconds: float = 30, retries: int = 3) -> None:
        self._http = httpx.Client(**connection_options(url, key, timeout_seconds))
        self._retries = retries

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # Jobs.

    def submit(
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
        return self._ask(calls.submit(workflow_id, inputs, **options))

    def job(self, job_id: int | str, *, children: bool = False) -> JobReply:
        return self._ask(calls.job(job_id, children=children))

    def jobs(
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
        return self._ask(calls.jobs(status=status, limit=limit, offset=offset, **filters))

    def wait(self, job_id: int | str, timeout_seconds: float | None = None) -> JobReply:
        """The job when it has ended, however that was. Raises TimedOut."""
        return self._run(plans.waiting(job_id, self._retries, timeout_seconds))

    def result(self, job_id: int | str, timeout_seconds: float | None = None) -> dict[str, Any]:
        """What the job's nodes put out. Waits for its end; raises JobFailed, JobCancelled or TimedOut."""
        return plans.outcome(self.wait(job_id, timeout_seconds))

    def stream(self, job_id: int | str, after: int | str | None = None) -> Iterator[TimelineEntry]:
        """Everything that happens to the job, as it happens, until it has ended; a lost connection is made anew."""
        stream = Stream(job_id, self._retries, None if after is None else str(after))
        while not stream.has_ended:
            yield from self._events(stream)
            self._run(stream.gone())

    def cancel(self, job_id: int | str, reason: str | None = None) -> JobSteered:
        return self._ask(calls.cancel(job_id, reason))

    def pause(self, job_id: int | str, reason: str | None = None) -> JobSteered:
        return self._ask(calls.pause(job_id, reason))

    def resume(self, job_id: int | str) -> JobSteered:
        return self._ask(calls.resume(job_id))

    def retry(self, job_id: int | str, node_id: str | None = None) -> JobSteered:
        """Try again what has failed: one node, or all of the job."""
        return self._ask(calls.retry(job_id, node_id))

    def signal(self, job_id: int | str, name: str, data: Any = None) -> SignalReply:
        """Wake the nodes that wait for it; if none does, it is kept for the first that will."""
        return self._ask(calls.signal(job_id, name, data))

    def approve(self, job_id: int | str, node_id: str, comment: str | None = None) -> DecisionReply:
        """Let the job go on behind an approval."""
        return self._ask(calls.decide(job_id, node_id, "approve", comment))

    def reject(self, job_id: int | str, node_id: str, comment: str | None = None) -> DecisionReply:
        """Fail an approval for good."""
        return self._ask(calls.decide(job_id, node_id, "reject", comment))

    def timeline(
        self,
        job_id: int | str,
        *,
        node_id: str | None = None,
        event_types: Sequence[str] = (),
        after: int | str | None = None,
        limit: int = 1000,
    ) -> TimelineReply:
        """Oldest first; go on with `after=reply.next_after` while it `has_more`."""
        return self._ask(calls.timeline(job_id, node_id=node_id, event_types=event_types, after=after, limit=limit))

    def graph(self, job_id: int | str) -> GraphReply:
        return self._ask(calls.graph(job_id))

    def progress(self, job_id: int | str) -> JobProgress:
        """How much of it is done, and when it may be over."""
        return self._ask(calls.progress(job_id))

    def explain(self, job_id: int | str, node_id: str | None = None) -> Explanation:
        """Why it does not go on."""
        return self._ask(calls.explain(job_id, node_id))

    def logged(self, job_id: int | str, *, limit: int = 50, offset: int = 0) -> Page[LoggedNode]:
        """Which nodes may have a log: what failed first, then what runs."""
        return self._ask(calls.logged(job_id, limit=limit, offset=offset))

    def logs(
        self,
        job_id: int | str,
        node_id: str,
        *,
        attempt: int | None = None,
        tail: int | None = None,
        follow: bool = False,
    ) -> Iterator[str]:
        """What an attempt at a node, or else the newest, has printed and logged, in pieces.

        With `follow` it goes on while it is written; without an attempt also with those after it.
        """
        path, params = calls.logs(job_id, node_id, attempt=attempt, tail=tail, follow=follow)
        try:
            with self._http.stream("GET", path, params=params, timeout=log_timeout(self._http, follow)) as answer:
                if not answer.is_success:
                    answer.read()
                    raise error_of(answer)
                yield from answer.iter_text()
        except httpx.TransportError as error:
            raise unreachable(error.request.url, error) from error

    # What there is.

    def workflows(self) -> WorkflowList:
        return self._ask(calls.workflows())

    def workflow(self, workflow_id: str) -> WorkflowReply:
        return self._ask(calls.workflow(workflow_id))

    def schedules(self) -> list[ScheduleReply]:
        return self._ask(calls.schedules())

    def schedule(self, schedule_id: str) -> ScheduleReply:
        return self._ask(calls.schedule(schedule_id))

    def pause_schedule(self, schedule_id: str) -> ScheduleReply:
        """Let it start nothing more."""
        return self._ask(calls.steer_schedule(schedule_id, "pause"))

    def resume_schedule(self, schedule_id: str) -> ScheduleReply:
        """Let it go on with the next time that is still to come."""
        return self._ask(calls.steer_schedule(schedule_id, "resume"))

    def trigger_schedule(self, schedule_id: str) -> ScheduleTriggered:
        """Start a job now, as the schedule would."""
        return self._ask(calls.trigger_schedule(schedule_id))

    def sync_schedules(self, *, prune: bool = False) -> SchedulesSynced:
        """Have the server make the schedules what its workflows say."""
        return self._ask(calls.sync_schedules(prune=prune))

    def backfill(
        self, schedule_id: str, start: datetime, end: datetime, *, max_jobs: int = 1000, dry_run: bool = False
    ) -> BackfillReply:
        """Start the jobs of a range of time gone by that are not there yet, the oldest first."""
        return self._ask(calls.backfill(schedule_id, start, end, max_jobs=max_jobs, dry_run=dry_run))

    def workers(self, *, limit: int = 100, offset: int = 0) -> Page[WorkerReply]:
        return self._ask(calls.workers(limit=limit, offset=offset))

    def drain_worker(self, worker_id: str) -> WorkerWanted:
        """Give it no more tasks; what it runs may end."""
        return self._ask(calls.steer_worker(worker_id, "drain"))

    def stop_worker(self, worker_id: str) -> WorkerWanted:
        """Let it end as after SIGTERM."""
        return self._ask(calls.steer_worker(worker_id, "stop"))

    def resume_worker(self, worker_id: str) -> WorkerWanted:
        """Give a drained worker tasks again."""
        return self._ask(calls.steer_worker(worker_id, "resume"))

    def orchestrators(self) -> FleetStatus:
        return self._ask(calls.orchestrators())

    def clear_cache(self, handler: str | None = None) -> CacheCleared:
        """Forget the results of tasks that are kept for others, of one handler or of all."""
        return self._ask(calls.clear_cache(handler))

    def handlers(self) -> list[HandlerOfFleet]:
        """What workers have registered, with those that run it now."""
        return self._ask(calls.handlers())

    def queues(self) -> list[QueueReply]:
        return self._ask(calls.queues())

    # The I/O.

    def _ask(self, call: Call[T]) -> T:
        return self._run(plans.asking(call, self._retries))

    def _run(self, plan: Plan[T]) -> T:
        outcome: Any = None
        while True:
            try:
                step = plan.send(outcome)
            except StopIteration as end:
                answer: T = end.value
                return answer
            outcome = self._do(step)

    def _do(self, step: Send | Pause | Listen) -> Any:
        match step:
            case Send(call):
                return self._send(call)
            case Pause(seconds):
                sleep(seconds)
            case Listen(stream):
                for _ in self._events(stream):
                    if stream.is_late():
                        break
        return None

    def _send(self, call: Call[Any]) -> httpx.Response | httpx.TransportError:
        try:
            return self._http.request(
                call.method, call.path, params=call.params, content=call.content, headers=headers_of(call)
            )
        except httpx.TransportError as error:
            return error

    def _events(self, stream: Stream) -> Iterator[TimelineEntry]:
        """Of one connection, until it ends or is lost."""
        try:
            with connect_sse(self._http, **stream.request(self._http.timeout)) as source:
                if source.response.is_error:
                    source.response.read()
                stream.opened(source.response)
                for said in source.iter_sse():
                    yield stream.take(said)
        except (httpx.TransportError, DagmasterError) as error:
            stream.lose(error)
