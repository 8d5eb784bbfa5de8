from datetime import UTC, datetime
from typing import Any

import pytest

from dagmaster.model.timeline import WORDS, describe
from dagmaster.store.job_tables import EVENT_TYPES

TAKEN_OVER: dict[str, Any] = {"from": "1", "to": "2"}


def event(kind: str, *, error: str | None = None, duration_ms: int | None = None, **data: Any) -> dict[str, Any]:
    return {
        "event_type": kind,
        "event_data": data or None,
        "error_message": error,
        "duration_ms": duration_ms,
        "created_at": datetime.now(UTC),
    }


def test_every_event_type_has_a_description() -> None:
    assert set(WORDS) == set(EVENT_TYPES)


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_an_event_without_data_has_a_description(kind: str) -> None:
    text = describe(event(kind))
    assert text
    assert not set(text) & set("{}[]")


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (event("job_created", workflow_id="w", workflow_version=2, submitted_by=None), "submitted: w version 2"),
        (event("job_created", workflow_id="w", workflow_version=2, submitted_by="me"), "submitted: w version 2 by me"),
        (event("job_failed", error="node a failed: [x] {y}"), "the job has failed: node a failed: [x] {y}"),
        (event("job_cancelled", actor="me", reason=None), "the job is cancelled by me"),
        (event("job_cancelled", actor=None, reason="late"), "the job is cancelled: late"),
        (event("node_dispatched", queue="q", handler="h"), "dispatched to queue q for h"),
        (event("node_completed", duration_ms=12), "completed in 12 ms"),
        (event("node_completed", duration_ms=61_000), "completed in 1 min 1 s"),
        (event("node_completed", duration_ms=0, fan_out_count=5), "expanded into 5 items"),
        (event("node_completed", duration_ms=0, fan_out_count=1), "expanded into 1 item"),
        (event("node_failed", error="no", will_retry=True), "failed: no; it will be retried"),
        (event("node_failed", error="no", will_retry=False), "failed: no"),
        (event("node_failed", error="no", ended_by="timeout"), "failed: no"),
        (event("node_failed", error="stopped", ended_by="cancelled"), "cancelled: stopped"),
        (event("node_failed", error="stopped", ended_by="revoked"), "cancelled: stopped"),
        (event("node_retrying", attempt=1, max_retries=3, not_before=None), "attempt 2 of 4"),
        (
            event("node_retrying", attempt=1, max_retries=3, not_before="2026-03-01T12:00:00.823425+00:00"),
            "attempt 2 of 4 not before 2026-03-01 12:00:00 UTC",
        ),
        (event("node_skipped", reason="conditional_branch_not_taken"), "skipped: its branch was not taken"),
        (event("job_taken_over", **TAKEN_OVER), "taken over by orchestrator 2 from 1"),
        (event("something_new", x=1), "something new"),
    ],
)
def test_events_are_described_in_words(event: dict[str, Any], text: str) -> None:
    assert describe(event) == text
