"""Compare the owner's memory of a job with one loaded from the rows, and its judgement of a stall with theirs."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from dagmaster.engine.state import FanState, JobState, NodeState
from dagmaster.explain.reasons import stands_without_reason
from dagmaster.model.states import NodeStatus
from simulation.graphs import QUEUE
from simulation.ground import Ground, require
from simulation.store import JOB_COLUMNS, NODE_COLUMNS, NodeRow
from simulation.timeline import timeout_of

NODE_FIELDS = (*NODE_COLUMNS, "index", "has_params", "output", "version", "is_added", "snowflake")
# Relevant only for nodes that may still become ready.
EDGE_FIELDS = ("all_open", "any_open", "any_live", "live")
JOB_FIELDS = (*JOB_COLUMNS, "version", "open", "signals", "open_finalizers")
FAN_FIELDS = ("total", "created", "open", "in_flight")
# The check may run at any time: at once, after back-offs, and after all task timeouts.
LATER = (timedelta(), timedelta(seconds=10), timedelta(hours=2))


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


def check_stall(ground: Ground, job: JobState) -> None:
    later = LATER[ground.step % len(LATER)]
    now = ground.now + later
    reported, stuck = stands_without_reason(job, now, ground.rules, ground.closed_queues), is_stuck(ground, now)
    require(reported is stuck, "{} later the job is {}stuck, the engine says otherwise", later, "" if stuck else "not ")


def is_stuck(ground: Ground, now: datetime) -> bool:
    """No operator paused it, nothing is in flight, and no time is awaited."""
    store = ground.store
    if store.is_over or store.job.paused_at is not None:
        return False
    return not any(_is_excused(ground, row, now) for row in store.nodes.values())


def _is_excused(ground: Ground, row: NodeRow, now: datetime) -> bool:
    is_task = row.node_id in ground.case.plans
    match row.status:
        case NodeStatus.READY:
            is_held = is_task and (row.queue or QUEUE) in ground.closed_queues
            return is_held or (row.not_before is not None and row.not_before > now)
        case NodeStatus.RUNNING if row.result_of is not None:
            return False
        case NodeStatus.RUNNING if is_task:
            assert row.started_at is not None
            seconds = timeout_of(ground.case, row.node_id) + ground.rules.timeout_grace_seconds
            return now < row.started_at + timedelta(seconds=seconds)
        case NodeStatus.RUNNING:  # It waits, or creates its children.
            return True
        case _:
            return False
