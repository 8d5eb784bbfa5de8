"""The commands at a server, over HTTP."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import Any

from dagmaster.cli.backend import Decided, Listed, Order, Range, Receipt, Row, Steered, Whole
from dagmaster.cli.inputs import read_inputs
from dagmaster.cli.output import between
from dagmaster.cli.progress import SHARE_OF_TIME, FanView, JobView, NodeView, Outlook, Show
from dagmaster.client import Client
from dagmaster.errors import Invalid, Unavailable
from dagmaster.explain.facts import Explanation, Kind
from dagmaster.model.states import JOB_TERMINAL
from dagmaster.model.workflow import InputType
from dagmaster.schemas.jobs import JobReply, JobSteered, NodeReply
from dagmaster.schemas.nodes import JobProgress
from dagmaster.schemas.timeline import GraphNode, TimelineEntry
from dagmaster.schemas.workflows import WorkflowReply
from dagmaster.settings import Settings
from dagmaster.tasklogs.reader import LogSelection
from dagmaster.tracing import describe, span

PAGE = 1000
POLL_SECONDS = 0.25
RECONNECT_SECONDS = 1.0
FRAME = ("start", "end")


@contextmanager
def opened(settings: Settings) -> "Iterator[Remote]":
    assert settings.url is not None
    with Client(settings.url, settings.api_key.get_secret_value() if settings.api_key else None) as client:
        yield Remote(client)


@dataclass(frozen=True, slots=True)
class Remote:
    client: Client

    def submit(self, order: Order, show: Callable[[Receipt], Show | None]) -> JobView | None:
        if order.workflow.endswith((".yaml", ".yml")) or "/" in order.workflow:
            raise Invalid(f"the server knows workflows by their ids, not {order.workflow!r}; `dagmaster workflows`")
        with span("submit_job", workflow_id=order.workflow) as traced:
            inputs = read_inputs(self._types(order), order.pairs, *order.documents)
            created = self.client.submit(order.workflow, inputs, **order.options)
            describe(traced, job_id=created.job_id)
        shown = show(Receipt(int(created.job_id), created.is_new, created.warnings))
        return self._follow(created.job_id, shown) if shown is not None else None

    def _types(self, order: Order) -> dict[str, InputType]:
        """Only single inputs need them: what is given as JSON says itself what it is."""
        return types_of(self.client.workflow(order.workflow)) if order.pairs else {}

    def _follow(self, job_id: str, show: Show) -> JobView:
        """The server may be away for a while."""
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
        found: list[Row] = []
        while len(found) < limit:
            wanted = min(limit - len(found), PAGE)
            page = self.client.jobs(status=status, workflow_id=workflow_id, limit=wanted, offset=len(found))
            found += [_row(job) for job in page.items]
            if not page.has_more:
                break
        return found

    def job_ids(self, prefix: str, *, limit: int) -> Sequence[int]:
        return [int(job.job_id) for job in self.client.jobs(id_prefix=prefix, limit=limit).items]

    def job(self, job_id: int, *, children: bool) -> Whole:
        whole = _row(self.client.job(job_id, children=children))
        job = {name: value for name, value in whole.items() if name not in ("nodes", "value")}
        order = [node.node_id for node in self.client.graph(job_id).nodes]
        outlook = _outlook(self.client.progress(job_id), datetime.now(UTC))
        return Whole(job, whole["nodes"], outlook, (), order, whole["value"])

    def events(
        self, job_id: int, node: str | None, types: Sequence[str], each: Callable[[Row], None], *, follow: bool
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

    def _page(self, job_id: int, node: str | None, types: Sequence[str], after: str | None) -> Iterator[TimelineEntry]:
        """All that there are by now, behind `after`."""
        while True:
            reply = self.client.timeline(job_id, node_id=node, event_types=types, after=after, limit=PAGE)
            yield from reply.events
            if not reply.has_more:
                return
            after = reply.next_after

    def logged(self, job_id: int, *, limit: int) -> Sequence[Row]:
        return [_row(node) for node in self.client.logged(job_id, limit=limit).items]

    def logs(self, job_id: int, node: str, wanted: LogSelection, each: Callable[[str], None]) -> None:
        for piece in self.client.logs(job_id, node, attempt=wanted.attempt, tail=wanted.tail, follow=wanted.follow):
            each(piece)

    def cancel(self, job_id: int, *, actor: str | None, reason: str | None) -> Steered:
        _check_actor(actor)
        return _steered(self.client.cancel(job_id, reason))

    def pause(self, job_id: int, *, actor: str | None, reason: str | None) -> Steered:
        _check_actor(actor)
        return _steered(self.client.pause(job_id, reason))

    def resume(self, job_id: int, *, actor: str | None) -> Steered:
        _check_actor(actor)
        return _steered(self.client.resume(job_id))

    def retry(self, job_id: int, node: str | None, *, actor: str | None) -> Steered:
        _check_actor(actor)
        return _steered(self.client.retry(job_id, node))

    def signal(self, job_id: int, name: str, data: Any, *, actor: str | None) -> str:
        _check_actor(actor)
        return self.client.signal(job_id, name, data).status

    def decide(self, job_id: int, node: str, *, approved: bool, comment: str | None, actor: str | None) -> Decided:
        _check_actor(actor)
        decide = self.client.approve if approved else self.client.reject
        reply = decide(job_id, node, comment)
        return Decided(reply.status, reply.is_done)

    def explain(self, job_id: int, node: str | None) -> Explanation:
        found = self.client.explain(job_id, node)
        return Explanation(Kind(found.kind), found.sentence, found.data)

    def instances(self) -> tuple[Sequence[Row], Sequence[Row]]:
        try:
            orchestrators = self.client.orchestrators().instances
        except Unavailable:  # the answer when none is alive
            orchestrators = []
        renamed = [
            {
                "orchestrator_id": one.instance_id,
                "status": "running" if one.is_running else one.status,
                "hostname": one.hostname or "",
                "pid": "",
                "heartbeat_at": one.last_heartbeat,
                "jobs_owned": one.active_jobs,
            }
            for one in orchestrators
        ]
        return renamed, [_row(worker) for worker in self.client.workers(limit=100).items]

    def steer_worker(self, worker_id: str, command: str, *, actor: str | None) -> str:
        _check_actor(actor)
        steer = {
            "drain": self.client.drain_worker,
            "stop": self.client.stop_worker,
            "resume": self.client.resume_worker,
        }
        return steer[command](worker_id).wanted

    def handlers(self) -> Sequence[Row]:
        return [one.model_dump() for one in self.client.handlers()]

    def queues(self) -> Sequence[Row]:
        now = datetime.now(UTC)
        return [
            {
                "queue": one.queue,
                "waiting": one.depth,
                "held": one.held,
                "running": one.running,
                "oldest_dispatched_at": now - timedelta(seconds=waits) if (waits := one.oldest_wait_seconds) else None,
            }
            for one in self.client.queues()
            if one.depth or one.held or one.running
        ]

    def schedules(self) -> Sequence[Row]:
        return [_row(one) for one in self.client.schedules()]

    def steer_schedule(self, schedule_id: str, command: str, *, actor: str | None) -> Row:
        _check_actor(actor)
        steer = {"pause": self.client.pause_schedule, "resume": self.client.resume_schedule}
        return _row(steer[command](schedule_id))

    def trigger_schedule(self, schedule_id: str, *, actor: str | None) -> Row:
        _check_actor(actor)
        return _row(self.client.trigger_schedule(schedule_id))

    def sync_schedules(self, handlers: Sequence[str], *, prune: bool, actor: str | None) -> Row:
        _check_actor(actor)
        if handlers:
            raise Invalid("--handlers is for the files of this machine; the server has its own")
        return _row(self.client.sync_schedules(prune=prune))

    def backfill(self, schedule_id: str, wanted: Range, *, actor: str | None) -> Row:
        _check_actor(actor)
        done = self.client.backfill(schedule_id, wanted.start, wanted.end, max_jobs=wanted.most, dry_run=wanted.dry_run)
        return _row(done)

    def clear_cache(self, handler: str | None, *, actor: str | None) -> int:
        _check_actor(actor)
        return self.client.clear_cache(handler).removed

    def workflows(self, handlers: Sequence[str]) -> tuple[Sequence[Listed], Sequence[Row]]:
        if handlers:
            raise Invalid("--handlers is for the files of this machine; the server has its own")
        reply = self.client.workflows()
        found = [_listed(self.client.workflow(one.workflow_id)) for one in reply.workflows]
        return found, [_row(problem) for problem in reply.problems]


def _row(reply: Any) -> dict[str, Any]:
    row: dict[str, Any] = reply.model_dump()
    return row


def _check_actor(actor: str | None) -> None:
    if actor is not None:
        raise Invalid("--by is not for a server: there it is whoever the API key belongs to")


def _steered(reply: JobSteered) -> Steered:
    return Steered(reply.status, reply.is_done)


def _event(entry: TimelineEntry) -> Row:
    """Named as the columns are."""
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


def _listed(workflow: WorkflowReply) -> Listed:
    required = workflow.inputs.get("required", ())
    inputs = [name if name in required else f"{name}?" for name in workflow.inputs.get("properties", {})]
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
    return Listed(
        workflow.workflow_id, workflow.version, workflow.node_count, inputs, workflow.source, workflow.is_active, record
    )


def _outlook(told: JobProgress, now: datetime) -> Outlook:
    return Outlook(
        told.work_percent,
        now,
        told.estimated_completion,
        told.estimate_basis,
        told.overdue_seconds,
        told.overall_percent,
    )


def view_of(job: JobReply, order: Sequence[GraphNode], told: JobProgress) -> JobView:
    nodes = {node.node_id: node for node in job.nodes}
    now = datetime.now(UTC)
    return JobView(
        int(job.job_id),
        job.workflow_id,
        job.status,
        [_node(nodes[one.node_id], one.children, now) for one in order if one.type not in FRAME],
        job.error_message,
        job.result_data,
        between(job.created_at, job.completed_at or now) or 0.0,
        _outlook(told, now),
        job.value,
    )


def _node(node: NodeReply, children: Mapping[str, int], now: datetime) -> NodeView:
    return NodeView(
        node.node_id,
        node.status,
        node.retry_count + 1,
        max(node.max_retries, node.retry_count) + 1,
        node.last_error,
        node.not_before,
        node.started_at,
        node.completed_at,
        now,
        _fan(node, children) if children else None,
        node.outcome,
    )


def _fan(node: NodeReply, children: Mapping[str, int]) -> FanView:
    items = node.output["fan_out_count"] if node.output else 0
    return FanView(children, items=items)
