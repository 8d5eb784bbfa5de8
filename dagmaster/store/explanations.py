"""Why a job or a node does not run: its state and related facts, read in one snapshot."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from dagmaster.engine.state import JobState, NodeState, is_executed, new_job, restore
from dagmaster.errors import NotFound, UnknownNode
from dagmaster.explain import explanation
from dagmaster.explain.facts import Consumer, Explanation, Facts, OwnerFacts, Progress, QueueFacts
from dagmaster.ids import JobId, NodeId
from dagmaster.model.graph import Graph, NodeType
from dagmaster.model.states import NODE_TERMINAL, JobStatus, NodeStatus
from dagmaster.store.connect import Connection
from dagmaster.store.handlers import known_handlers
from dagmaster.store.job_states import node_of
from dagmaster.store.jobs import known_job
from dagmaster.store.orchestrators import is_orchestrated
from dagmaster.store.queues import is_local
from dagmaster.store.statements import fetch, fetch_one, run
from dagmaster.store.workers import WorkerRow, list_workers
from dagmaster.store.workflows import PinnedGraphs

Row = Mapping[str, Any]

# An owner silent for half of the timeout has missed more than one heartbeat.
SILENT = 0.5
MAX_DETAILS = 20
DECIDING = (NodeType.CONDITIONAL, NodeType.FAN_OUT)


async def explain_job(
    conn: Connection, job_id: JobId, *, threshold_seconds: float, pinned: PinnedGraphs | None = None
) -> Explanation:
    """Raises UnknownJob. Opens its own transaction. Frequent callers pass `pinned`."""
    job, facts, now = await _read_snapshot(conn, job_id, None, threshold_seconds, pinned)
    return explanation.explain_job(job, facts, now)


async def explain_node(
    conn: Connection, job_id: JobId, node_id: NodeId, *, threshold_seconds: float, pinned: PinnedGraphs | None = None
) -> Explanation:
    """Raises UnknownJob and UnknownNode. Opens its own transaction."""
    job, facts, now = await _read_snapshot(conn, job_id, node_id, threshold_seconds, pinned)
    return explanation.explain_node(job, node_id, facts, now)


async def _read_snapshot(
    conn: Connection, job_id: JobId, node_id: NodeId | None, threshold_seconds: float, pinned: PinnedGraphs | None
) -> tuple[JobState, Facts, datetime]:
    """The job, the facts about one node or about all open nodes, and the database's time."""
    async with conn.transaction():
        await run(conn, "explain_snapshot")
        values = {"job_id": job_id, "threshold_seconds": threshold_seconds}
        row = known_job(await fetch_one(conn, "explain_job", values), job_id)
        job = await _load(conn, row, pinned or PinnedGraphs())
        if node_id is not None and node_id not in job.nodes:
            raise UnknownNode(f"job {job_id} has no node {node_id!r}; `dagmaster show {job_id}` lists them")
        open_nodes = [node for node in job.nodes.values() if node.status not in NODE_TERMINAL]
        nodes = open_nodes if node_id is None else [job.nodes[node_id]]
        queues, closed_queues = await _queues(conn, nodes, row["owner_id"])
        tasks = await fetch(conn, "explain_tasks", {"job_id": job_id})
        is_orchestrated_now = await is_orchestrated(conn, threshold_seconds=threshold_seconds)
        facts = Facts(
            _owner(row, threshold_seconds, is_orchestrated_now=is_orchestrated_now),
            row["orchestrators"] if is_orchestrated_now else 0,
            threshold_seconds,
            queues,
            ahead={task["node_id"]: task["ahead"] for task in tasks if task["ahead"] is not None},
            holders={task["node_id"]: task["worker_id"] for task in tasks if task["worker_id"] is not None},
            errors=await _errors(conn, job, nodes),
            progress=await _progress(conn, job, nodes),
            children=await _children(conn, job, nodes),
            unregistered=await _unregistered(conn, nodes),
            closed_queues=closed_queues,
        )
    return job, facts, row["now"]


async def _load(conn: Connection, row: Row, pinned: PinnedGraphs) -> JobState:
    """The job as its owner would have it in memory, without the values of its nodes."""
    graph = await pinned.find(conn, row["workflow_hash"])
    if graph is None:
        raise NotFound(f"the pinned definition of job {row['job_id']} is not in dag_workflows")
    job = new_job(row["job_id"], graph, {}, row["created_at"], priority=row["priority"])
    job.status = JobStatus(row["status"])
    job.started_at, job.completed_at, job.idle_seconds = row["started_at"], row["completed_at"], row["idle_seconds"]
    job.error, job.failed_node = row["error_message"], row["failed_node"]
    job.paused_at, job.paused_by, job.resumed_at = row["paused_at"], row["paused_by"], row["resumed_at"]
    deciding = [node.node_id for node in graph.nodes.values() if node.type in DECIDING]
    nodes = await fetch(conn, "explain_nodes", {"job_id": job.job_id, "deciding": deciding})
    restore(job, [_node(node, graph) for node in nodes])
    return job


def _node(row: Row, graph: Graph) -> NodeState:
    node = node_of(row, graph, row["definition"].encode() if row["definition"] is not None else None)
    node.output = row["output"].encode() if row["output"] is not None else None
    return node


def _owner(row: Row, threshold_seconds: float, *, is_orchestrated_now: bool) -> OwnerFacts:
    beat = row["beat_seconds_ago"]
    beats = row["owner_runs"] and beat is not None and beat < threshold_seconds * SILENT
    return OwnerFacts(
        row["owner_id"], round(beat, 1) if beat is not None else None, bool(beats and is_orchestrated_now)
    )


async def _queues(
    conn: Connection, nodes: Iterable[NodeState], owner_id: str | None
) -> tuple[dict[str, QueueFacts], set[str]]:
    """The queues of these nodes, and those among them to which the job's owner dispatches nothing."""
    names = sorted({node.task_queue for node in nodes if is_executed(node)})
    if not names:
        return {}, set()
    rows = await fetch(conn, "explain_queues", {"queues": names, "owner_id": owner_id})
    workers = await list_workers(conn, status="active", queues=names)
    consumers = {name: tuple(_consumer(worker) for worker in workers if name in worker["queues"]) for name in names}
    facts = {
        name: QueueFacts(row["depth"], row["most"], consumers[name], is_local(name))
        for row in rows
        for name in [row["queue"]]
    }
    return facts, {row["queue"] for row in rows if row["is_closed"]}


def _consumer(row: WorkerRow) -> Consumer:
    handlers = frozenset(row["handlers"]) if row["handlers"] is not None else None
    is_taking = row["wanted"] == "run"
    stuck = len(row["stuck_tasks"])
    return Consumer(row["worker_id"], handlers, row["concurrency"], row["running_tasks"], stuck, is_taking)


async def _errors(conn: Connection, job: JobState, nodes: Iterable[NodeState]) -> dict[str, str]:
    """The last errors of nodes that wait for a retry; of some if there are many."""
    retrying = [node.node_id for node in nodes if node.status is NodeStatus.READY and node.not_before is not None]
    if not retrying:
        return {}
    values = {"job_id": job.job_id, "node_ids": retrying[:MAX_DETAILS]}
    rows = await fetch(conn, "explain_errors", values)
    return {row["node_id"]: row["error_message"] for row in rows if row["error_message"]}


async def _progress(conn: Connection, job: JobState, nodes: Iterable[NodeState]) -> dict[str, Progress]:
    running = [job.task_id(node) for node in nodes if node.status is NodeStatus.RUNNING and is_executed(node)]
    if not running:
        return {}
    rows = await fetch(conn, "explain_progress", {"task_ids": running[:MAX_DETAILS]})
    return {row["node_id"]: Progress(row["progress_percent"], row["progress_message"]) for row in rows}


async def _children(conn: Connection, job: JobState, nodes: Iterable[NodeState]) -> dict[str, int]:
    """The child jobs of these nodes."""
    calling = [job.task_id(node) for node in nodes if node.spec.child_job is not None]
    if not calling:
        return {}
    rows = await fetch(conn, "explain_children", {"job_id": job.job_id, "task_ids": calling})
    return {row["parent_node_id"]: row["job_id"] for row in rows}


async def _unregistered(conn: Connection, nodes: Iterable[NodeState]) -> frozenset[str]:
    names = {node.task.handler for node in nodes if is_executed(node)}
    return frozenset(names - await known_handlers(conn, names)) if names else frozenset()
