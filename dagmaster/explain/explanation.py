"""Why does it not run? One true sentence about a node or a job, from its state and related facts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dagmaster.engine.state import JobState, NodeState
from dagmaster.explain.facts import Explanation, Facts, Kind, QueueFacts
from dagmaster.explain.reasons import culprits, reasons
from dagmaster.explain.sentences import LISTED, describe, names, no_owner, paused
from dagmaster.explain.waits import Words, clock, iso
from dagmaster.model.added_nodes import OUTSIDE
from dagmaster.model.durations import write_duration
from dagmaster.model.states import NODE_TERMINAL, JobStatus

# Nodes that wait for another node or for a sibling's slot are not the cause of the wait.
FOLLOWERS = (Kind.WAITING_FOR_NODES, Kind.HELD_BY_MAX_PARALLEL, Kind.GIVING_RESULT, Kind.WAITING_FOR_END)
# The order in which reasons are given: those that need a person's action first.
ORDER = (
    Kind.NO_OWNER,
    Kind.PAUSED,
    Kind.WAITING_FOR_APPROVAL,
    Kind.WAITING_FOR_SIGNAL,
    Kind.RUNNING,
    Kind.WAITING_FOR_JOB,
    Kind.WAITING_FOR_TIME,
    Kind.BACK_PRESSURE,
    Kind.RETRY,
    Kind.QUEUED,
    Kind.EXPANDING,
    Kind.ABOUT_TO_RUN,
)


@dataclass(slots=True)
class _Group:
    """Nodes that wait for the same reason: one node, children of one fan-out, or the nodes that one task has added."""

    kind: Kind
    name: str
    nodes: list[NodeState] = field(default_factory=list)


def explain_node(job: JobState, node_id: str, facts: Facts, now: datetime) -> Explanation:
    """The sentence gives the first reason; `also` lists the others."""
    node = job.nodes[node_id]
    first, *others = reasons(job, node, facts, now)
    words = describe(first, job, node, facts, now)
    data = {
        "job_id": str(job.job_id),
        "node_id": node_id,
        "status": str(node.status),
        **words.data,
        "also": [_entry(kind, describe(kind, job, node, facts, now)) for kind in others],
    }
    return Explanation(first, f"Node `{node_id}` {words.text}.", data)


def _entry(kind: Kind, words: Words) -> dict[str, Any]:
    return {"kind": str(kind), "text": words.text, **words.data}


def explain_job(job: JobState, facts: Facts, now: datetime) -> Explanation:
    """The reason for the job as a whole, or else the nodes that all others wait for."""
    if job.is_terminal:
        return _explain_ended(job, facts)
    groups = _waiting(job, facts, now)
    stands = [_entry_of(group, job, facts, now) for group in groups[:LISTED]]
    data = {"job_id": str(job.job_id), "status": str(job.status), "open": job.open, "stands": stands}
    orphaned = None if facts.owner.is_alive else no_owner(job, facts)
    if job.is_paused:
        words = paused(job, now)
        also = [_entry(Kind.NO_OWNER, orphaned)] if orphaned is not None else []
        return Explanation(Kind.PAUSED, _sentence(words.text), {**data, **words.data, "also": also})
    if orphaned is not None:
        return Explanation(Kind.NO_OWNER, _sentence(orphaned.text), {**data, **orphaned.data, "also": []})
    if job.status is JobStatus.PENDING or not groups:
        text = f"Job {job.job_id} is about to {'start' if job.status is JobStatus.PENDING else 'continue'}: "
        return Explanation(Kind.ABOUT_TO_RUN, f"{text}its owner acts within a moment.", {**data, "also": []})
    return Explanation(groups[0].kind, _of_group(groups[0], job, facts, now), {**data, "also": stands[1:]})


def _explain_ended(job: JobState, facts: Facts) -> Explanation:
    is_reopened = job.status is JobStatus.FAILED and facts.owner.owner_id is not None
    data = {
        "job_id": str(job.job_id),
        "status": str(job.status),
        "error": job.error,
        "completed_at": iso(job.completed_at),
        "cause": culprits(job)[:LISTED],
        "stands": [],
        "also": [],
    }
    if is_reopened and not facts.owner.is_alive:
        words = no_owner(job, facts)
        return Explanation(Kind.NO_OWNER, _sentence(words.text), {**data, **words.data})
    if is_reopened:
        sentence = f"Job {job.job_id} failed and is about to be retried: its owner acts within a moment."
        return Explanation(Kind.ABOUT_TO_RUN, sentence, data)
    at = f" at {clock(job.completed_at)}" if job.completed_at else ""
    took = f" after {write_duration(job.duration_seconds)}" if job.duration_seconds is not None else ""
    why = f": {job.error.strip().partition(chr(10))[0]}" if job.error else ""
    verb = f"was {job.status}" if job.status is JobStatus.CANCELLED else str(job.status)
    return Explanation(Kind.ENDED, f"Job {job.job_id} {verb}{at}{took}{why}.", data)


def _waiting(job: JobState, facts: Facts, now: datetime) -> list[_Group]:
    groups: dict[tuple[str, Kind, bool], _Group] = {}
    for node in job.nodes.values():
        if node.status in NODE_TERMINAL:
            continue
        kind = reasons(job, node, facts, now)[0]
        if kind not in FOLLOWERS:
            name = node.parent or (node.added_by or OUTSIDE if node.is_added else node.node_id)
            groups.setdefault((name, kind, node.is_added), _Group(kind, name)).nodes.append(node)
    return sorted(groups.values(), key=lambda group: _rank(group, facts))


def _rank(group: _Group, facts: Facts) -> int:
    if group.kind is Kind.QUEUED and not _is_served(group.nodes[0], facts.queues):
        return 0
    return 1 + ORDER.index(group.kind)


def _is_served(node: NodeState, queues: Mapping[str, QueueFacts]) -> bool:
    consumers = queues.get(node.task_queue, QueueFacts()).consumers
    return any(consumer.has(node.task.handler) for consumer in consumers)


def _entry_of(group: _Group, job: JobState, facts: Facts, now: datetime) -> dict[str, Any]:
    """The entry of a group in a job's data."""
    first = group.nodes[0]
    words = describe(group.kind, job, first, facts, now)
    return {
        "kind": str(group.kind),
        "node_id": group.name,
        "nodes": [node.node_id for node in group.nodes[:LISTED]],
        "count": len(group.nodes),
        "sentence": f"{names([first.node_id])} {words.text}.",
        "data": words.data,
    }


def _of_group(group: _Group, job: JobState, facts: Facts, now: datetime) -> str:
    first = group.nodes[0]
    text = describe(group.kind, job, first, facts, now).text
    if first.is_added:
        others = f" and {len(group.nodes) - 1:,} more" if len(group.nodes) > 1 else ""
        by = f"that `{first.added_by}` has added" if first.added_by else "that an external caller has added"
        return f"Job {job.job_id} waits for `{first.node_id}`{others} {by}: `{first.node_id}` {text}."
    if first.parent is None:
        return f"Job {job.job_id} waits for `{group.name}`, which {text}."
    children = f"{len(group.nodes):,} of {job.fans[first.parent].total:,} children"
    return f"Job {job.job_id} waits for `{group.name}` ({children}): `{first.node_id}` {text}."


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
