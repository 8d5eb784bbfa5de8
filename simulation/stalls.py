"""Whether the job has stalled, judged by its rows; the engine must agree for the job in memory."""

from datetime import datetime, timedelta

from dagmaster.engine.state import JobState
from dagmaster.explain.reasons import stands_without_reason
from dagmaster.model.states import NodeStatus
from simulation.graphs import QUEUE
from simulation.ground import Ground, require
from simulation.store import NodeRow
from simulation.timeline import timeout_of

# The check may run at any time: at once, after back-offs, and after all task timeouts.
LATER = (timedelta(), timedelta(seconds=10), timedelta(hours=2))


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
