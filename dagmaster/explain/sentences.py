"""Reasons in words, with names and numbers."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from dagmaster.engine.state import JobState, NodeState, is_executed, is_revoked
from dagmaster.explain.facts import Facts, Kind, QueueFacts
from dagmaster.explain.reasons import bypass, culprits, is_lost, slot_holders, undecided
from dagmaster.explain.waits import Words, clock, describe_wait, find_skip_reason, iso
from dagmaster.model.durations import write_duration
from dagmaster.model.outcome import Outcome, outcome_of
from dagmaster.model.states import JobStatus, NodeStatus

NAMED = 4
LISTED = 100
ERROR_LENGTH = 200

STATUS_WORDS = {
    NodeStatus.PENDING: "waiting",
    NodeStatus.READY: "ready",
    NodeStatus.DISPATCHED: "queued",
    NodeStatus.RUNNING: "running",
}
ENDS_OF_CHILDREN = {
    Outcome.FAILED: "failed",
    Outcome.CANCELLED: "stopped with the job",
    Outcome.SKIPPED: "never started",
}


def describe(kind: Kind, job: JobState, node: NodeState, facts: Facts, now: datetime) -> Words:
    match kind:
        case Kind.ENDED:
            return _ended(job, node)
        case Kind.RUNNING:
            return _running(node, facts, now)
        case Kind.EXPANDING:
            return _expanding(job, node)
        case Kind.GIVING_RESULT:
            return _returning_result(job, node)
        case Kind.WAITING_FOR_NODES:
            return _waiting(job, node)
        case Kind.RETRY:
            return _retry(node, facts, now)
        case Kind.QUEUED:
            return _queued(node, facts)
        case Kind.HELD_BY_MAX_PARALLEL:
            return _at_max_parallel(job, node)
        case Kind.BACK_PRESSURE:
            return _back_pressure(node, facts)
        case Kind.PAUSED | Kind.NO_OWNER:
            text, data = paused(job, now) if kind is Kind.PAUSED else no_owner(job, facts)
            return Words(f"is blocked: {text}", data)
        case Kind.ABOUT_TO_RUN:
            return _about_to_run(node, facts)
        case _:
            return describe_wait(kind, node, facts)


def paused(job: JobState, now: datetime) -> Words:
    assert job.paused_at is not None
    data = {"paused_by": job.paused_by, "paused_at": job.paused_at.isoformat()}
    by = f" by {job.paused_by}" if job.paused_by else ""
    return Words(f"job {job.job_id} was paused{by} {span(now - job.paused_at)} ago", data)


def no_owner(job: JobState, facts: Facts) -> Words:
    owner, threshold = facts.owner, facts.threshold_seconds
    data = {
        "owner_id": owner.owner_id,
        "beat_seconds_ago": owner.beat_seconds_ago,
        "threshold_seconds": threshold,
        "orchestrators": facts.orchestrators,
    }
    if facts.orchestrators == 0:
        return Words("no orchestrator is running", data)
    if owner.owner_id is None:
        return Words(f"job {job.job_id} has no owner; an orchestrator adopts it at its next check", data)
    beat = owner.beat_seconds_ago
    last = f"last beat {span(timedelta(seconds=beat))} ago" if beat is not None else "is unknown"
    is_due = beat is None or beat >= threshold
    when = "at its next check" if is_due else f"after {span(timedelta(seconds=threshold))}"
    text = f"job {job.job_id} has no living owner: orchestrator {owner.owner_id} {last}; another one takes over {when}"
    return Words(text, data)


def _running(node: NodeState, facts: Facts, now: datetime) -> Words:
    since = node.started_at or now
    times_out = since + timedelta(seconds=node.task.timeout_seconds)
    worker, progress = facts.holders.get(node.node_id), facts.progress.get(node.node_id)
    data: dict[str, Any] = {
        "started_at": since.isoformat(),
        "worker_id": worker,
        "times_out_at": times_out.isoformat(),
        "attempt": node.attempt,
    }
    on, detail = f" on worker {worker}" if worker else "", ""
    if progress is not None:
        data["progress"] = {"percent": progress.percent, "message": progress.message}
        percent = f"{progress.percent:g} %" if progress.percent is not None else None
        detail = f" ({': '.join(filter(None, (percent, progress.message)))})"
    return Words(f"has been running for {span(now - since)}{on}{detail} and may run until {clock(times_out)}", data)


def _expanding(job: JobState, node: NodeState) -> Words:
    fan = job.fans[node.node_id]
    text = f"is being expanded: {fan.created:,} of its {fan.total:,} children are created"
    return Words(text, {"created": fan.created, "total": fan.total})


def _returning_result(job: JobState, node: NodeState) -> Words:
    assert node.result_of is not None
    text = f"has done its part and returns the result of `{node.result_of}`, which is {_doing(job, node.result_of)}"
    return Words(text, {"result_of": _source(job, node.result_of)})


def _waiting(job: JobState, node: NodeState) -> Words:
    all_of, any_of = undecided(job, node)
    lost = is_lost(node)
    is_plain = not lost and not (all_of and any_of)
    choice = "for one of" if len(any_of) > 1 else "for"
    parts = [f"for {_doing_names(all_of, job, is_plain=is_plain)}"] if all_of else []
    parts += [f"{choice} {_doing_names(any_of, job, is_plain=is_plain)}"] if any_of else []
    data = {
        "all_of": [_source(job, name) for name in all_of[:LISTED]],
        "any_of": [_source(job, name) for name in any_of[:LISTED]],
        "will_be_skipped": lost,
    }
    return Words(f"waits {' and '.join(parts)}{' and will then be skipped' if lost else ''}", data)


def _source(job: JobState, name: str) -> dict[str, Any]:
    node, data = job.nodes[name], {"node_id": name, "status": str(job.nodes[name].status)}
    if node.status is NodeStatus.COMPLETED:
        fan = job.fans[name]
        return {**data, "children": fan.total, "children_open": fan.open}
    return data


def names(ids: Sequence[str]) -> str:
    """For example: `a`, `b` and 3 more."""
    return _joined([f"`{name}`" for name in ids[:NAMED]], len(ids))


def _doing_names(ids: Sequence[str], job: JobState, *, is_plain: bool) -> str:
    """The nodes with their states: once if they are all the same, otherwise for each."""
    states = [_doing(job, name) for name in ids]
    if is_plain and len(set(states)) == 1:
        return f"{names(ids)}, which {'is' if len(ids) == 1 else 'are'} {states[0]}"
    return _joined([f"`{name}` ({state})" for name, state in zip(ids, states, strict=True)][:NAMED], len(ids))


def _joined(parts: list[str], total: int) -> str:
    if total > len(parts):
        parts = [*parts, f"{total - len(parts):,} more"]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _doing(job: JobState, name: str) -> str:
    node = job.nodes[name]
    if node.status is NodeStatus.COMPLETED:
        fan = job.fans[name]
        return f"expanded with {fan.open:,} of {fan.total:,} children open"
    return STATUS_WORDS.get(node.status, str(node.status))


def _retry(node: NodeState, facts: Facts, now: datetime) -> Words:
    assert node.not_before is not None
    error = facts.errors.get(node.node_id)
    last = f" (last: {_line(error)})" if error else ""
    times = "once" if node.attempt == 1 else f"{node.attempt} times"
    data = {
        "failures": node.attempt,
        "last_error": error,
        "not_before": node.not_before.isoformat(),
        "in_seconds": round((node.not_before - now).total_seconds(), 3),
        "max_retries": node.max_retries,
    }
    when = f"{clock(node.not_before)}, in {span(node.not_before - now)}"
    where = f" in queue `{node.queue}`" if node.queue else ""
    return Words(f"failed {times}{last} and will be retried{where} at {when}", data)


def _queued(node: NodeState, facts: Facts) -> Words:
    task, name, ahead = node.task, node.task_queue, facts.ahead[node.node_id]
    queue = facts.queues.get(name, QueueFacts())
    taking = [consumer for consumer in queue.consumers if consumer.is_taking]
    able = [consumer for consumer in taking if consumer.has(task.handler)]
    free = [consumer for consumer in able if consumer.is_free]
    data = {
        "queue": name,
        "handler": task.handler,
        "ahead": ahead,
        "depth": queue.depth,
        "consumers": len(taking),
        "drained": len(queue.consumers) - len(taking),
        "able": len(able),
        "free": len(free),
        "workers": [consumer.worker_id for consumer in able[:LISTED]],
        "is_registered": task.handler not in facts.unregistered,
    }
    place = f"waits in queue `{name}` after {count(ahead, 'other task')}" if ahead else f"is next in queue `{name}`"
    service = _service(queue, len(taking), len(able), len(free), task.handler)
    if taking and not able and task.handler in facts.unregistered:
        service += ", which no worker has registered"
    return Words(f"{place}; {service}", data)


def _service(queue: QueueFacts, everyone: int, able: int, free: int, handler: str) -> str:
    if not queue.consumers and queue.is_local:
        return "the program that runs this job has stopped; unless it continues, the job will be cancelled"
    if not queue.consumers:
        return "no worker consumes this queue"
    if not everyone:
        drained = len(queue.consumers)
        return "its only worker takes no more tasks" if drained == 1 else f"all {drained} workers take no more tasks"
    if not able:
        consume = "its only worker does not have" if everyone == 1 else f"none of its {everyone} workers has"
        return f"{consume} the handler `{handler}`"
    if not free:
        return "the only worker that takes such tasks is busy" if able == 1 else f"all {able} workers for it are busy"
    return f"{free} of {count(able, 'worker')} for it {'is' if free == 1 else 'are'} free"


def _at_max_parallel(job: JobState, node: NodeState) -> Words:
    holders = slot_holders(job, node)
    assert node.spec.fan_out is not None
    limit = node.spec.fan_out.max_parallel
    data = {"max_parallel": limit, "held_by": holders[:LISTED], "fan_out": node.parent}
    slots = "the only slot" if limit == 1 else f"one of {limit} slots"
    return Words(f"waits for {slots} (max_parallel), held by {names(holders)}", data)


def _back_pressure(node: NodeState, facts: Facts) -> Words:
    name = node.task_queue
    queue = facts.queues.get(name, QueueFacts())
    limit = f", the limit is {queue.limit:,}" if queue.limit is not None else ""
    text = f"is not dispatched because queue `{name}` is full ({count(queue.depth, 'task')} waiting{limit})"
    return Words(text, {"queue": name, "depth": queue.depth, "limit": queue.limit})


def _about_to_run(node: NodeState, facts: Facts) -> Words:
    data: dict[str, Any] = {"owner_id": facts.owner.owner_id}
    if node.status is not NodeStatus.DISPATCHED:
        return Words("is about to start: nothing blocks it", data)
    worker = facts.holders.get(node.node_id)
    holder = f"worker {worker}" if worker else "a worker"
    return Words(f"was taken by {holder}; its owner is about to record that", {**data, "worker_id": worker})


def _ended(job: JobState, node: NodeState) -> Words:
    data: dict[str, Any] = {
        "completed_at": iso(node.completed_at),
        "attempts": node.attempt + 1,
    }
    match node.status:
        case NodeStatus.COMPLETED:
            children = _children(job, node)
            return Words(f"{'expanded' if children else 'completed'}{_when(node)}{children}", data)
        case NodeStatus.FAILED if is_revoked(node):
            return Words(f"was stopped because {_end_of(job)}", {**data, "cause": culprits(job)[:LISTED]})
        case NodeStatus.FAILED:
            tries = count(node.attempt + 1, "attempt")
            return Words(f"failed permanently after {tries}: {_line(node.error)}", {**data, "error": node.error})
        case _:
            return _skipped(job, node, data)


def _skipped(job: JobState, node: NodeState, data: dict[str, Any]) -> Words:
    if (branch := bypass(job, node)) is not None:
        why = f"`{branch.conditional}` took the branch `{branch.branch}`, which does not lead to it"
        return Words(f"was skipped because {why}", {**data, "cause": [branch.conditional], "branch": branch.branch})
    if (reason := find_skip_reason(job, node)) is not None:
        return Words(f"was skipped because {reason}", data)
    return Words(f"was skipped because {_end_of(job)}", {**data, "cause": culprits(job)[:LISTED]})


def _end_of(job: JobState) -> str:
    failed = job.status is not JobStatus.CANCELLED
    why = f" ({_line(job.error)})" if job.error else ""
    return f"job {job.job_id} {'failed' if failed else 'was cancelled'}{why}"


def _when(node: NodeState) -> str:
    if node.completed_at is None:
        return ""
    took = f" after {span(node.completed_at - node.started_at)}" if node.started_at and is_executed(node) else ""
    return f" at {clock(node.completed_at)}{took}"


def _children(job: JobState, node: NodeState) -> str:
    """A fan-out completes when it has expanded: its children may be open, or may have ended otherwise."""
    fan = None if node.is_child else job.fans.get(node.node_id)
    if fan is None or not fan.total:
        return ""
    if fan.open:
        return f"; {fan.open:,} of its {fan.total:,} children are still open"
    counts = Counter(outcome_of(child.status, ended_by=child.ended_by) for child in job.children(node.node_id))
    others = [f"{counts[outcome]:,} {verb}" for outcome, verb in ENDS_OF_CHILDREN.items() if counts[outcome]]
    return f"; of its {count(fan.total, 'item')} {_joined(others, len(others))}" if others else ""


def _line(error: str | None) -> str:
    first = (error or "no error message").strip().partition("\n")[0]
    return first if len(first) <= ERROR_LENGTH else f"{first[:ERROR_LENGTH]}..."


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def span(length: timedelta) -> str:
    return write_duration(length.total_seconds())
