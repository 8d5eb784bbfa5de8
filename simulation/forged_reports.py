"""Forged reports, which the engine must ignore."""

from dagmaster.engine.messages import TaskCompleted, TaskFailed, TaskLost, TasksAdded, TaskStarted
from dagmaster.model.added_nodes import AddedNode
from dagmaster.model.states import NodeStatus
from dagmaster.model.workflow import CHILD_SEPARATOR
from simulation.ground import JOB_ID, Ground

FORGER = "forger"
LIE = b'{"value":"forged"}'
NEVER = 50
"""An attempt that no node ever reaches."""


def forge(ground: Ground) -> TaskCompleted | TaskFailed | TaskLost | TaskStarted | TasksAdded:
    rng, now = ground.rng, ground.now
    node_id, task_id = _false_name(ground)
    return rng.choice(
        (
            TaskCompleted(node_id, task_id, FORGER, now, LIE, 1),
            TaskFailed(node_id, task_id, FORGER, now, "forged", permanent=True),
            TaskLost(node_id, task_id, FORGER, now, given_back=rng.random() < 0.5),
            TaskStarted(node_id, task_id, FORGER, now),
            TasksAdded(node_id, task_id, FORGER, now, (AddedNode(f"{node_id}.forged", "work"),)),
        )
    )


def _false_name(ground: Ground) -> tuple[str, str]:
    """A wrong attempt, a wrong node, a wrong job, or a node that no worker executes."""
    nodes, rng = ground.store.nodes, ground.rng
    under_way = [row for row in nodes.values() if row.status is NodeStatus.RUNNING and row.node_id in ground.case.items]
    if under_way and rng.random() < 0.5:
        return under_way[0].node_id, f"{JOB_ID}_{under_way[0].node_id}_{under_way[0].attempt}"
    node_id, other = rng.sample(list(nodes), 2)
    attempt = nodes[node_id].attempt
    engine_node = rng.choice([name for name in nodes if name not in ground.case.plans])
    return rng.choice(
        (
            (node_id, f"{JOB_ID}_{node_id}_{attempt + NEVER}"),
            (node_id, f"{JOB_ID}_{node_id}_-1"),
            (node_id, f"{JOB_ID}_{node_id}"),
            (node_id, f"{JOB_ID}_{other}_{nodes[other].attempt}"),
            (node_id, f"{JOB_ID + 1}_{node_id}_{attempt}"),
            (node_id, f"{JOB_ID}_{node_id}{CHILD_SEPARATOR}0_0"),
            ("ghost", f"{JOB_ID}_ghost_0"),
            (f"{node_id}{CHILD_SEPARATOR}99", f"{JOB_ID}_{node_id}{CHILD_SEPARATOR}99_0"),
            (engine_node, f"{JOB_ID}_{engine_node}_{nodes[engine_node].attempt}"),
        )
    )
