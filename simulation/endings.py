"""Invariants of an ended job, and of a world at rest."""

import orjson

from dagmaster.engine.messages import TaskCompleted, TaskFailed
from dagmaster.model.states import ENDED_WITH_JOB, NODE_TERMINAL, JobEndedBy, JobStatus, NodeStatus
from dagmaster.model.workflow import EndNode, StartNode
from simulation.cases import parent_of
from simulation.forged_reports import FORGER
from simulation.ground import INTERFERING, Fault, Ground, require
from simulation.leaves import may_fail
from simulation.oracle import Oracle
from simulation.store import Store
from simulation.timeline import Timeline


def check_end(ground: Ground, oracle: Oracle, timeline: Timeline) -> None:
    require(not open_nodes(ground.store), "the job has ended, open are {}", open_nodes(ground.store))
    match ground.store.job.status:
        case JobStatus.COMPLETED:
            _check_success(ground.store, oracle)
        case JobStatus.FAILED:
            _check_failure(ground, oracle, timeline)
        case _:
            require(ground.faults[Fault.CANCEL] > 0, "the job was cancelled without a request")


def open_nodes(store: Store) -> str:
    rows = store.nodes.values()
    return ", ".join(f"{row.node_id} ({row.status})" for row in rows if row.status not in NODE_TERMINAL)


def _check_success(store: Store, oracle: Oracle) -> None:
    """Every node ended as the oracle predicted, and the result contains its output."""
    expected = oracle.expected
    require(not oracle.doomed, "the job completed although {} can never succeed", oracle.doomed)
    ends = {node_id: row.status for node_id, row in store.nodes.items()}
    wrong = {
        node_id: str(status)
        for node_id, status in ends.items()
        if expected.get(node_id) is not status and not _was_allowed(node_id, status, oracle)
    }
    require(ends.keys() == expected.keys(), "the nodes are {}, not {}", sorted(ends), sorted(expected))
    require(not wrong, "the job completed, these ended otherwise than they should: {}", wrong)
    result = orjson.loads(store.job.result or b"{}")
    keys = {node_id for node_id in expected if ends[node_id] is NodeStatus.COMPLETED}
    keys = {node_id for node_id in keys if _shows(node_id, oracle)}
    require(result.keys() == keys | {"_provenance"}, "the result has {}, not {}", sorted(result), sorted(keys))
    for node_id in keys:
        same = result[node_id] == orjson.loads(store.nodes[node_id].output or b"null")
        require(same, "the result of {} is {}", node_id, result[node_id])


def _was_allowed(node_id: str, status: NodeStatus, oracle: Oracle) -> bool:
    """It failed and was allowed to; a doomed node must fail."""
    return status is NodeStatus.FAILED and may_fail(parent_of(node_id) or node_id, oracle.case.blueprint.workflow)


def _shows(node_id: str, oracle: Oracle) -> bool:
    """Whether its output belongs to the job's result: not those of start, end and children."""
    node = oracle.case.blueprint.workflow.nodes.get(node_id)
    return node is not None and not isinstance(node, StartNode | EndNode)


def _check_failure(ground: Ground, oracle: Oracle, timeline: Timeline) -> None:
    """A node was doomed, or faults used up its attempts, or nothing progressed for too long."""
    job = ground.store.job
    error, culprit = job.error, job.failed_node
    ended_by = JobEndedBy.DEADLINE if culprit is None else JobEndedBy.FAILURE
    require(job.ended_by is ended_by, "the job ended by {}, not by {}: {}", job.ended_by, ended_by, error)
    if culprit is None:
        # A stalled job would be a bug: as long as the job is open, a timer or an external event is ahead.
        require(timeline.was_late is True, "the job failed before its deadline: {}", error)
        return
    row = ground.store.nodes.get(culprit)
    if culprit in timeline.left and (row is None or row.status is NodeStatus.SKIPPED or row.ended_by in ENDED_WITH_JOB):
        return
    assert row is not None and row.status is NodeStatus.FAILED, f"the job failed without a node: {error}"
    spent = row.attempt >= row.max_retries or not timeline.is_forgiven(culprit)
    require(spent, "{} could have been retried: {}", culprit, row)
    planned = culprit in oracle.doomed or parent_of(culprit) in oracle.doomed or culprit in ground.case.broken
    unlucky = timeline.timeouts > 0 or any(ground.faults[fault] for fault in INTERFERING)
    require(planned or unlucky, "the job failed although everything could succeed: {}", error)


def check_rest(ground: Ground) -> None:
    """Nothing happens any more: the job has ended, and every report of a worker was stored."""
    store = ground.store
    require(store.is_over, "the job never ended; open are {}", open_nodes(store))
    require(not store.mailbox, "mail is left over: {}", store.mailbox)
    orphans = [task_id for task_id, status in store.children.items() if status == "running"]
    require(not orphans, "the job has ended, but its child jobs continue: {}", orphans)
    for message in store.sent:
        if isinstance(message, TaskCompleted | TaskFailed) and message.worker_id not in (FORGER, None):
            require(message.task_id in store.results, "the report {} was not stored", message)
