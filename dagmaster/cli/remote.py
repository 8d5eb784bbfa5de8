"""The backend of commands on a server, over HTTP."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from dagmaster.cli.backend import AssetCall, JobDetails, Row, ServiceCall, SubmitArguments, WorkflowLine
from dagmaster.cli.inputs import read_inputs
from dagmaster.cli.output import time_shown
from dagmaster.cli.progress import SHARE_OF_TIME, FanView, JobView, NodeView, Outlook, Show
from dagmaster.client import Client
from dagmaster.client.coroutines import complete
from dagmaster.client.service import HttpAssetService, HttpService, read_pages
from dagmaster.errors import Invalid, Unavailable
from dagmaster.explain.facts import Explanation, Kind
from dagmaster.ids import JobId
from dagmaster.model.states import JOB_TERMINAL
from dagmaster.model.workflow import InputType
from dagmaster.schemas.jobs import JobReply
from dagmaster.schemas.nodes import JobProgress
from dagmaster.schemas.timeline import GraphNode, TimelineEntry
from dagmaster.schemas.workflows import WorkflowReply
from dagmaster.service.contract import SubmitRequest, SubmitResult
from dagmaster.settings import Settings
from dagmaster.tasklogs.reader import LogSelection
from dagmaster.tracing import describe, span

T = TypeVar("T")

PAGE = 1000
POLL_SECONDS = 0.25
RECONNECT_SECONDS = 1.0
FRAME = ("start", "end")


@contextmanager
def opened(settings: Settings) -> "Iterator[Remote]":
    assert settings.url is not None
    key = settings.api_key.get_secret_value() if settings.api_key else None
    with Client(settings.url, key) as client:
        yield Remote(client, HttpService(client.requests))


@dataclass(frozen=True, slots=True)
class Remote:
    client: Client
    service: HttpService

    def call(self, verb: ServiceCall[T], *, actor: str | None = None) -> T:
        _check_actor(actor)
        return complete(verb(self.service))

    def call_assets(self, verb: AssetCall[T], *, actor: str | None = None, runs_workflows: bool = False) -> T:
        _check_actor(actor)
        return complete(verb(HttpAssetService(self.client.requests)))

    def submit(self, arguments: SubmitArguments, show: Callable[[SubmitResult], Show | None]) -> JobView | None:
        name = arguments.workflow
        if name.endswith((".yaml", ".yml")) or "/" in name:
            raise Invalid(f"a server needs a workflow id, not {name!r}; `dagmaster workflows` lists them")
        with span("submit_job", workflow_id=name) as traced:
            inputs = read_inputs(self._types(arguments), arguments.pairs, *arguments.documents)
            result = complete(self.service.submit(SubmitRequest(name, inputs, **arguments.options)))
            describe(traced, job_id=result.job_id)
        watcher = show(result)
        return self._follow(result.job_id, watcher) if watcher is not None else None

    def _types(self, arguments: SubmitArguments) -> dict[str, InputType]:
        """Only single inputs need them; JSON documents carry their own types."""
        return types_of(self.client.workflow(arguments.workflow)) if arguments.pairs else {}

    def _follow(self, job_id: JobId, show: Show) -> JobView:
        """Tolerates an unavailable server."""
        while True:
            began = perf_counter()
            try:
                job, nodes = self.client.job(job_id), self.client.graph(job_id).nodes
                view = view_of(job, nodes, self.client.progress(job_id))
            except Unavailable:
                time.sleep(RECONNECT_SECONDS)
                continue
            show(view)
            if view.has_ended:
                return view
            time.sleep(max(POLL_SECONDS, SHARE_OF_TIME * (perf_counter() - began)))

    def jobs(self, *, status: str | None, workflow_id: str | None, limit: int) -> Sequence[Row]:
        ask = partial(self.client.requests.jobs, status=status, workflow_id=workflow_id)
        return complete(read_pages(ask, limit))

    def job_ids(self, prefix: str, *, limit: int) -> Sequence[JobId]:
        return [JobId(int(job.job_id)) for job in self.client.jobs(id_prefix=prefix, limit=limit).items]

    def job(self, job_id: JobId, *, children: bool) -> JobDetails:
        row = _row(self.client.job(job_id, children=children))
        job = {name: value for name, value in row.items() if name not in ("nodes", "value")}
        order = [node.node_id for node in self.client.graph(job_id).nodes]
        outlook = _outlook(self.client.progress(job_id), datetime.now(UTC))
        return JobDetails(job, row["nodes"], outlook, (), order, row["value"])

    def events(
        self, job_id: JobId, node: str | None, types: Sequence[str], each: Callable[[Row], None], *, follow: bool
    ) -> None:
        after: str | None = None
        while True:
            has_ended = not follow or self.client.job(job_id).status in JOB_TERMINAL
            for event in self._page(job_id, node, types, after):
                each(_event(event))
                after = event.event_id
            if has_ended:
                return
            time.sleep(POLL_SECONDS)

    def _page(
        self, job_id: JobId, node: str | None, types: Sequence[str], after: str | None
    ) -> Iterator[TimelineEntry]:
        """All current events after `after`."""
        while True:
            reply = self.client.timeline(job_id, node_id=node, event_types=types, after=after, limit=PAGE)
            yield from reply.events
            if not reply.has_more:
                return
            after = reply.next_after

    def logged(self, job_id: JobId, *, limit: int) -> Sequence[Row]:
        return [_row(node) for node in self.client.logged(job_id, limit=limit).items]

    def logs(self, job_id: JobId, node: str, selection: LogSelection, each: Callable[[str], None]) -> None:
        options = {"attempt": selection.attempt, "tail": selection.tail}
        for piece in self.client.logs(job_id, node, follow=selection.follow, **options):
            each(piece)

    def explain(self, job_id: JobId, node: str | None) -> Explanation:
        reply = self.client.explain(job_id, node)
        return Explanation(Kind(reply.kind), reply.sentence, reply.data)

    def orchestrators(self) -> Sequence[Row]:
        try:
            orchestrators = self.client.orchestrators().instances
        except Unavailable:  # the server's response when none is alive
            return []
        return [
            {
                "orchestrator_id": row.instance_id,
                "status": "running" if row.is_running else row.status,
                "hostname": row.hostname or "",
                "pid": "",
                "heartbeat_at": row.last_heartbeat,
                "jobs_owned": row.active_jobs,
            }
            for row in orchestrators
        ]

    def workers(self, *, status: str | None = None, limit: int) -> Sequence[Row]:
        return complete(read_pages(partial(self.client.requests.workers, status=status), limit))

    def handlers(self) -> Sequence[Row]:
        return [_row(handler) for handler in self.client.handlers()]

    def queues(self) -> Sequence[Row]:
        queues = self.client.queues()
        return [{**_row(queue), "oldest_dispatched_at": _ago(queue.oldest_wait_seconds)} for queue in queues]

    def schedules(self) -> Sequence[Row]:
        return [_row(schedule) for schedule in self.client.schedules()]

    def sync_schedules(self, handlers: Sequence[str], *, prune: bool, actor: str | None) -> Row:
        _check_actor(actor)
        if handlers:
            raise Invalid("--handlers cannot be used with --url: the server has its own handlers")
        return _row(self.client.sync_schedules(prune=prune))

    def workflows(self, handlers: Sequence[str]) -> tuple[Sequence[WorkflowLine], Sequence[Row]]:
        if handlers:
            raise Invalid("--handlers cannot be used with --url: the server has its own handlers")
        reply = self.client.workflows()
        lines = [_workflow_line(self.client.workflow(summary.workflow_id)) for summary in reply.workflows]
        return lines, [_row(problem) for problem in reply.problems]


def _row(reply: Any) -> dict[str, Any]:
    row: dict[str, Any] = reply.model_dump()
    return row


def _ago(seconds: float | None) -> datetime | None:
    return datetime.now(UTC) - timedelta(seconds=seconds) if seconds else None


def _check_actor(actor: str | None) -> None:
    if actor is not None:
        raise Invalid("--by cannot be used with --url: the server records the name of the API key")


def _event(entry: TimelineEntry) -> Row:
    """With the names of the columns."""
    return {
        "event_id": entry.event_id,
        "created_at": entry.timestamp,
        "event_type": entry.event_type,
        "event_status": entry.status,
        "node_id": entry.node_id,
        "task_id": entry.task_id,
        "event_data": entry.data,
        "error_message": entry.error_message,
        "duration_ms": entry.duration_ms,
        "source_app": entry.source_app,
    }


def types_of(workflow: WorkflowReply) -> dict[str, InputType]:
    types: dict[str, InputType] = {}
    for name, described in workflow.inputs.get("properties", {}).items():
        kind = described["type"]
        types[name] = InputType(kind if isinstance(kind, str) else kind[0])
    return types


def _workflow_line(workflow: WorkflowReply) -> WorkflowLine:
    record = {
        "workflow_id": workflow.workflow_id,
        "name": workflow.name,
        "version": workflow.version,
        "description": workflow.description,
        "is_active": workflow.is_active,
        "nodes": workflow.node_count,
        "inputs": workflow.inputs.get("properties", {}),
        "file": workflow.source,
    }
    return WorkflowLine(record, workflow.inputs.get("required", ()))


def _outlook(progress: JobProgress, now: datetime) -> Outlook:
    return Outlook(
        progress.work_percent,
        now,
        progress.estimated_completion,
        progress.estimate_basis,
        progress.overdue_seconds,
        progress.overall_percent,
    )


def view_of(job: JobReply, order: Sequence[GraphNode], progress: JobProgress) -> JobView:
    nodes = {node.node_id: _row(node) for node in job.nodes}
    now = datetime.now(UTC)
    return JobView(
        JobId(int(job.job_id)),
        job.workflow_id,
        job.status,
        [_node(nodes[step.node_id], step.children, now) for step in order if step.type not in FRAME],
        job.error_message,
        job.result_data,
        time_shown(vars(job), now),
        _outlook(progress, now),
        job.value,
    )


def _node(node: Row, children: Mapping[str, int], now: datetime) -> NodeView:
    fan = FanView(children, items=node["output"]["fan_out_count"] if node["output"] else 0) if children else None
    return NodeView.of(node, now, fan)
