"""The outcome of a node together with its children."""

from datetime import UTC, datetime

import pytest

from dagmaster.model.outcome import Children, Outcome, children_of, count_outcomes, end_of, outcome_of


@pytest.mark.parametrize(
    ("fan", "may_fail", "outcome"),
    [
        ({}, False, Outcome.COMPLETED),
        ({"completed": 3}, False, Outcome.COMPLETED),
        ({"completed": 3, "ready": 1}, False, Outcome.RUNNING),
        ({"failed": 1, "running": 1}, False, Outcome.RUNNING),
        ({"completed": 3, "failed": 1}, False, Outcome.FAILED),
        ({"completed": 3, "failed": 1, "skipped": 4}, False, Outcome.FAILED),
        ({"completed": 3, "failed": 1}, True, Outcome.COMPLETED_WITH_FAILURES),
        ({"completed": 3, "skipped": 1}, False, Outcome.CANCELLED),
        ({"completed": 3, "cancelled": 1}, True, Outcome.CANCELLED),
    ],
)
def test_a_fan_outs_outcome_follows_its_children(fan: dict[str, int], may_fail: bool, outcome: Outcome) -> None:
    assert outcome_of("completed", children_of(fan, {}, may_fail=may_fail)) is outcome


@pytest.mark.parametrize("status", ["pending", "ready", "dispatched", "running", "failed", "skipped"])
def test_an_uncompleted_nodes_outcome_is_its_status(status: str) -> None:
    assert outcome_of(status, Children({"failed": 1})) == status


@pytest.mark.parametrize("ended_by", ["revoked", "cancelled"])
def test_a_node_that_ended_with_its_job_is_cancelled(ended_by: str) -> None:
    assert outcome_of("failed", ended_by=ended_by) is Outcome.CANCELLED
    assert outcome_of("failed", ended_by="failure") is Outcome.FAILED


def test_failures_of_added_nodes_fail_their_task() -> None:
    assert outcome_of("completed", children_of({}, {"failed": 1})) is Outcome.FAILED
    assert outcome_of("completed", children_of({}, {"skipped": 1})) is Outcome.COMPLETED
    both = children_of({"failed": 2}, {"failed": 1}, may_fail=True)
    assert (both.failed, both.tolerated, outcome_of("completed", both)) == (3, 2, Outcome.FAILED)


def test_a_fan_out_is_counted_by_its_outcome() -> None:
    failed = children_of({"completed": 2, "failed": 1}, {})
    tolerated = children_of({"completed": 2, "failed": 1}, {}, may_fail=True)
    assert count_outcomes([(outcome_of("completed", failed), failed), (Outcome.PENDING, Children())]) == {
        "failed": 2,
        "completed": 2,
        "pending": 1,
    }
    assert count_outcomes([(outcome_of("completed", tolerated), tolerated)]) == {"completed": 3, "failed": 1}


def test_a_node_has_ended_when_the_last_of_its_children_has():
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    ended = Children({"completed": 2}, last_ended_at=late)
    assert end_of(early) == early
    assert end_of(early, ended) == end_of(late, Children({"completed": 2}, last_ended_at=early)) == late
    assert end_of(early, Children({"completed": 1, "running": 1}, last_ended_at=late)) is None
    assert end_of(None, ended) is None  # It still runs, although the nodes that it has added are done.
