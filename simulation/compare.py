"""Compare two memories of a job: the owner's, and one loaded from the rows."""

from collections.abc import Iterator

from dagmaster.engine.state import FanState, JobState, NodeState
from dagmaster.model.states import NodeStatus

NODE_FIELDS = (
    "status",
    "attempt",
    "max_retries",
    "parent",
    "index",
    "has_params",
    "output",
    "error",
    "ended_by",
    "dispatched_at",
    "started_at",
    "completed_at",
    "not_before",
    "queue",
    "version",
    "is_added",
    "added_by",
    "snowflake",
    "result_of",
)
# Relevant only for nodes that may still become ready.
EDGE_FIELDS = ("all_open", "any_open", "any_live", "live")
JOB_FIELDS = (
    "status",
    "started_at",
    "version",
    "open",
    "paused_at",
    "paused_by",
    "resumed_at",
    "error",
    "failed_node",
    "ended_by",
    "deadline_at",
    "signals",
    "open_finalizers",
)
FAN_FIELDS = ("total", "created", "open", "in_flight")


def difference(memory: JobState, rows: JobState) -> str | None:
    """The first difference, or None."""
    return next(_differences(memory, rows), None)


def _differences(memory: JobState, rows: JobState) -> Iterator[str]:
    yield from _fields("the job", JOB_FIELDS, memory, rows)
    if memory.nodes.keys() != rows.nodes.keys():
        yield f"the nodes {sorted(memory.nodes.keys() ^ rows.nodes.keys())} are only on one side"
    for node_id in memory.nodes.keys() & rows.nodes.keys():
        edges = EDGE_FIELDS if memory.nodes[node_id].status is NodeStatus.PENDING else ()
        yield from _fields(node_id, (*NODE_FIELDS, *edges), memory.nodes[node_id], rows.nodes[node_id])
        yield from _edges(memory.nodes[node_id], rows.nodes[node_id])
    for node_id in memory.fans.keys() | rows.fans.keys():
        fans = memory.fans.get(node_id, FanState()), rows.fans.get(node_id, FanState())
        yield from _fields(f"the fan of {node_id}", FAN_FIELDS, *fans)
        yield from _queued_twice(memory, node_id)
    yield from _forgotten(memory)


def _edges(memory: NodeState, rows: NodeState) -> Iterator[str]:
    """The edges that the definition does not have, in any order."""
    if sorted(memory.followers or ()) != sorted(rows.followers or ()):
        yield f"{memory.node_id} is followed by {memory.followers} in memory and by {rows.followers} in the rows"
    if memory.spec.all_of != rows.spec.all_of:
        yield f"{memory.node_id} waits for {memory.spec.all_of} in memory and for {rows.spec.all_of} in the rows"


def _fields(label: str, names: tuple[str, ...], memory: object, rows: object) -> Iterator[str]:
    for name in names:
        first, second = getattr(memory, name), getattr(rows, name)
        if first != second:
            yield f"{name} of {label} is {first!r} in memory and {second!r} in the rows"


def _queued_twice(job: JobState, fan_out: str) -> Iterator[str]:
    """A duplicate would waste a slot that no other child would get."""
    waiting = job.fans[fan_out].waiting if fan_out in job.fans else ()
    if len(set(waiting)) != len(waiting):
        yield f"a child of {fan_out} waits twice: {list(waiting)}"


def _forgotten(job: JobState) -> Iterator[str]:
    """A ready node waits for a slot, for its queue or for its time; otherwise nothing would ever start it."""
    if job.is_paused:
        return
    waiting = {node_id for fan in job.fans.values() for node_id in fan.waiting}
    waiting |= job.postponed.keys()
    waiting |= {node_id for node_ids in job.backlog.values() for node_id in node_ids}
    for node in job.nodes.values():
        if node.status is NodeStatus.READY and node.not_before is None and node.node_id not in waiting:
            yield f"{node.node_id} is ready and nothing will start it"
