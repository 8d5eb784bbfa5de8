"""Whether two memories of a job are the same: one that went on, and one that was read from the rows."""

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
# They only matter for what may still become ready.
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
    "last_open",
)
FAN_FIELDS = ("total", "created", "open", "in_flight")


def difference(kept: JobState, read: JobState) -> str | None:
    """The first thing that differs."""
    return next(_differences(kept, read), None)


def _differences(kept: JobState, read: JobState) -> Iterator[str]:
    yield from _fields("the job", JOB_FIELDS, kept, read)
    if kept.nodes.keys() != read.nodes.keys():
        yield f"the nodes {sorted(kept.nodes.keys() ^ read.nodes.keys())} are only in one of them"
    for node_id in kept.nodes.keys() & read.nodes.keys():
        edges = EDGE_FIELDS if kept.nodes[node_id].status is NodeStatus.PENDING else ()
        yield from _fields(node_id, (*NODE_FIELDS, *edges), kept.nodes[node_id], read.nodes[node_id])
        yield from _edges(kept.nodes[node_id], read.nodes[node_id])
    for node_id in kept.fans.keys() | read.fans.keys():
        fans = kept.fans.get(node_id, FanState()), read.fans.get(node_id, FanState())
        yield from _fields(f"the fan of {node_id}", FAN_FIELDS, *fans)
        yield from _queued_twice(kept, node_id)
    yield from _forgotten(kept)


def _edges(kept: NodeState, read: NodeState) -> Iterator[str]:
    """Those that the definition does not have, in any order."""
    if sorted(kept.followers or ()) != sorted(read.followers or ()):
        yield f"{kept.node_id} is followed by {kept.followers} in memory and by {read.followers} in the rows"
    if kept.spec.all_of != read.spec.all_of:
        yield f"{kept.node_id} waits for {kept.spec.all_of} in memory and for {read.spec.all_of} in the rows"


def _fields(what: str, names: tuple[str, ...], kept: object, read: object) -> Iterator[str]:
    for name in names:
        first, second = getattr(kept, name), getattr(read, name)
        if first != second:
            yield f"{name} of {what} is {first!r} in memory and {second!r} in the rows"


def _queued_twice(job: JobState, fan_out: str) -> Iterator[str]:
    """Its second place in the line would be wasted, and nobody would be called in its stead."""
    waiting = job.fans[fan_out].waiting if fan_out in job.fans else ()
    if len(set(waiting)) != len(waiting):
        yield f"a child of {fan_out} waits twice: {list(waiting)}"


def _forgotten(job: JobState) -> Iterator[str]:
    """A node that is ready waits for a place, for its queue or for its time; nothing else would ever start it."""
    if job.is_paused:
        return
    waiting = {node_id for fan in job.fans.values() for node_id in fan.waiting}
    waiting |= job.postponed.keys()
    waiting |= {node_id for node_ids in job.backlog.values() for node_id in node_ids}
    for node in job.nodes.values():
        if node.status is NodeStatus.READY and node.not_before is None and node.node_id not in waiting:
            yield f"{node.node_id} is ready and nothing will start it"
