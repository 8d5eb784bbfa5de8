"""A job's timeline, in words."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dagmaster.errors import Invalid
from dagmaster.model.durations import write_duration
from dagmaster.model.problems import did_you_mean
from dagmaster.model.states import ENDED_WITH_JOB, EVENT_ALIASES

# `{...}` are fields of the event's data; a part in brackets is left out if one of its fields is missing.
WORDS: Mapping[str, str] = {
    "job_created": "submitted: {workflow_id} version {workflow_version}[ by {submitted_by}]",
    "job_started": "the job has started",
    "job_completed": "the job is completed[ after {duration_seconds} s]",
    "job_failed": "the job has failed[: {error}]",
    "job_cancelled": "the job is cancelled[ by {actor}][: {reason}]",
    "job_warning": "warning[: {warning}]",
    "job_taken_over": "taken over by orchestrator {to}[ from {from}]",
    "node_ready": "ready",
    "node_dispatched": "dispatched[ to queue {queue} for {handler}]",
    "node_started": "started[ on worker {worker_id}]",
    "node_completed": "completed[ in {duration}]",
    "node_failed": "failed[: {error}]",
    "node_retrying": "attempt {next_attempt} of {attempts}[ not before {not_before}]",
    "node_skipped": "skipped[: {reason}]",
    "node_checkpoint": "checkpoint[ {phase}]",
    "node_warning": "warning[: {warning}]",
    "result_ignored": "a report of worker {worker_id} was ignored[: {reason}]",
    "orchestrator_cycle": "the orchestrator has processed the job",
    "orchestrator_error": "an orchestrator failed to process the job[: {error}]",
    "orchestrator_stall": "the orchestrator is stalled",
    "orchestrator_backpressure": "the orchestrator applies backpressure",
    "command": "command[ {command}][ by {actor}]",
    "job_paused": "the job is paused[ by {actor}][: {reason}]",
    "job_resumed": "the job is resumed[ by {actor}]",
    "job_reopened": "the job is retried[ by {actor}]",
    "node_reopened": "open again",
    "tasks_added": "{count} tasks added[ by {added_by}]",
    "signal_received": "signal {name}[ by {actor}][: {reason}]",
    "approval_requested": "waits for approval[: {message}]",
    "approval_decided": "{decision}[ by {by}][: {comment}]",
    "schedule_fired": "started by schedule {schedule_id} for {scheduled_for}[ at the request of {actor}]",
    "schedule_missed": "schedule {schedule_id} missed {count} times[: {error}]",
    "callback_delivered": "the end of the job was reported[ to {url}]",
    "callback_failed": "the end of the job could not be reported[ to {url}][: {error}]",
}
# A node in flight when its job ended did not fail, although only this move ends it.
STOPPED = "cancelled[: {error}]"
# A fan-out completes as soon as its children exist; they have hardly begun.
EXPANDED = "expanded into {items}"
REASONS = {
    "conditional_branch_not_taken": "its branch was not taken",
    "job_failed": "the job failed",
    "job_cancelled": "the job was cancelled",
    "job_reopened": "the finalizers that added it run again",
    "job_did_not_fail": "the job did not fail",
    "step_before_failed": "the step before it failed",
}


def event_types(text: str | None) -> list[str]:
    """Parse a comma-separated list of types; raises Invalid for an unknown type."""
    names = [name.strip().lower() for name in (text or "").split(",") if name.strip()]
    known = {*WORDS, *EVENT_ALIASES}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"; types are {', '.join(WORDS)}"
            raise Invalid(f"there is no event type {name!r}{hint}")
    return names


def describe(event: Mapping[str, Any]) -> str:
    """The event as a sentence without its subject."""
    fields = _fields(event)
    pattern = WORDS.get(event["event_type"], event["event_type"].replace("_", " "))
    if event["event_type"] == "node_failed" and fields.get("ended_by") in ENDED_WITH_JOB:
        pattern = STOPPED
    if event["event_type"] == "node_completed" and "items" in fields:
        pattern = EXPANDED
    head, *parts = pattern.split("[")
    text = _filled(head, fields) or event["event_type"].replace("_", " ")
    for part in parts:
        text += _filled(part.rstrip("]"), fields) or ""
    is_retried = event["event_type"] == "node_failed" and fields.get("will_retry")
    return f"{text}; it will be retried" if is_retried else text


def _fields(event: Mapping[str, Any]) -> dict[str, Any]:
    fields = {**(event["event_data"] or {}), "error": event["error_message"]}
    if event["duration_ms"] is not None:
        fields["duration"] = write_duration(event["duration_ms"] / 1000)
    if "attempt" in fields:
        fields["next_attempt"] = fields["attempt"] + 1
        fields["attempts"] = fields.get("max_retries", fields["attempt"]) + 1
    if fields.get("not_before"):
        fields["not_before"] = f"{datetime.fromisoformat(fields['not_before']).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    if "fan_out_count" in fields:
        fields["items"] = "1 item" if fields["fan_out_count"] == 1 else f"{fields['fan_out_count']} items"
    if "approved" in fields:
        fields["decision"] = "approved" if fields["approved"] else "rejected"
    fields["reason"] = REASONS.get(fields.get("reason", ""), fields.get("reason"))
    return fields


def _filled(pattern: str, fields: Mapping[str, Any]) -> str | None:
    """None if a field has no value."""
    try:
        return pattern.format_map({name: value for name, value in fields.items() if value not in (None, "")})
    except KeyError:
        return None
