"""Reports that nobody should believe."""

from dagmaster.engine.messages import TaskCompleted, TaskFailed, TaskLost, TaskStarted
from dagmaster.model.states import NodeStatus
from dagmaster.model.workflow import CHILD_SEPARATOR
from dagmaster.simulation.ground import JOB_ID, Ground

FORGER = "forger"
LIE = b'{"value":"forged"}'
NEVER = 50
"""An attempt that no node ever reaches."""


def forge(ground: Ground) -> TaskCompleted | TaskFailed | TaskLost | TaskStarted:
    """For a wrong attempt, a wrong node, a wrong job, or for a node that no worker executes."""
    rng, now = ground.rng, ground.now
    node_id = rng.choice(list(ground.store.nodes))
    attempt = ground.store.nodes[node_id].attempt
    other = rng.choice([one for one in ground.store.nodes if one != node_id])
    engine_node = _engine_node(ground)
    node_id, task_id = rng.choice(
        (
            (node_id, f"{JOB_ID}_{node_id}_{attempt + NEVER}"),
            (node_id, f"{JOB_ID}_{node_id}_-1"),
            (node_id, f"{JOB_ID}_{node_id}"),
            (node_id, f"{JOB_ID}_{other}_{ground.store.nodes[other].attempt}"),
            (node_id, f"{JOB_ID + 1}_{node_id}_{attempt}"),
            ("ghost", f"{JOB_ID}_ghost_0"),
            (f"{node_id}{CHILD_SEPARATOR}99", f"{JOB_ID}_{node_id}{CHILD_SEPARATOR}99_0"),
            (engine_node, f"{JOB_ID}_{engine_node}_{ground.store.nodes[engine_node].attempt}"),
        )
    )
    return rng.choice(
        (
            TaskCompleted(node_id, task_id, FORGER, now, LIE, 1),
            TaskFailed(node_id, task_id, FORGER, now, "forged", permanent=True),
            TaskLost(node_id, task_id, FORGER, now, given_back=rng.random() < 0.5),
            TaskStarted(node_id, task_id, FORGER, now),
        )
    )


def _engine_node(ground: Ground) -> str:
    """One that no worker executes; best one that is under way."""
    nodes = [row for row in ground.store.nodes.values() if row.node_id not in ground.case.plans]
    under_way = [row for row in nodes if row.status is NodeStatus.RUNNING]
    return ground.rng.choice(under_way or nodes).node_id
