from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from fleet import fan, fleet, retry, rows, single

from dagmaster.errors import Invalid
from dagmaster.store.connect import opened
from dagmaster.store.measures import failure_measures, node_measures, throughput, workflow_measures

NEW_JOB = """
INSERT INTO dagapp.dag_jobs (job_id, workflow_id, workflow_version, workflow_hash, priority, status, error_message,
    created_at, started_at, completed_at)
VALUES (%s, %s, 1, 'h', 0, %s, %s, now() - make_interval(hours => %s), now() - make_interval(hours => %s),
    CASE WHEN %s THEN now() - make_interval(hours => %s) + make_interval(secs => %s) END)
"""


class Past:
    """Jobs of which only rows exist."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.number = 0

    async def job(
        self,
        status: str = "completed",
        *,
        workflow: str = "w",
        seconds: float = 1,
        error: str | None = None,
        hours_ago: int = 1,
    ) -> int:
        self.number += 1
        has_ended = status != "running"
        values = (workflow, status, error, hours_ago, hours_ago, has_ended, hours_ago, seconds)
        await rows(self.dsn, NEW_JOB, self.number, *values)
        return self.number


async def measured(dsn: str, measure: Any, *args: Any, **options: Any) -> list[dict[str, Any]]:
    async with opened(dsn, application="test") as conn:
        return await measure(conn, *args, **options)


async def test_workflow_statistics_count_job_outcomes(dsn: str) -> None:
    past = Past(dsn)
    for seconds in (1, 2, 3, 10):
        await past.job(seconds=seconds)
    await past.job("failed", error="no luck", seconds=500)
    await past.job("cancelled")
    await past.job("running")
    await past.job("failed", error="long ago", hours_ago=24 * 8)
    await past.job(workflow="other")
    [row, other] = await measured(dsn, workflow_measures)
    assert (row["workflow_id"], other["workflow_id"]) == ("w", "other")
    counts = [row[name] for name in ("total", "completed", "failed", "cancelled")]
    assert counts == [7, 4, 1, 1]
    assert row["success_rate"] == 0.8
    assert row["avg_duration_seconds"] == pytest.approx(4)
    assert row["p50_duration_seconds"] == pytest.approx(2.5)
    assert row["p95_duration_seconds"] == pytest.approx(8.95)
    assert row["common_failures"] == [{"error_message": "no luck", "occurrences": 1}]
    assert row["period"]["days"] == 7
    assert row["period"]["to"] - row["period"]["from"] == timedelta(days=7)
    assert [row["workflow_id"] for row in await measured(dsn, workflow_measures, "other")] == ["other"]
    [longer] = await measured(dsn, workflow_measures, "w", days=30)
    assert longer["failed"] == 2


async def test_jobs_that_have_not_ended_have_no_rate(dsn: str) -> None:
    await Past(dsn).job("running")
    [row] = await measured(dsn, workflow_measures)
    assert (row["total"], row["success_rate"], row["avg_duration_seconds"]) == (1, None, None)
    assert row["common_failures"] == []


async def test_failures_are_grouped_by_cause(dsn: str) -> None:
    past = Past(dsn)
    for number in range(3):
        await past.job("failed", error=f"node f__{number} failed: timed out after {number}.5 s")
    last = await past.job("failed", workflow="other", error="node f__9 failed: timed out after 2 s")
    await past.job("failed", error="no file 0f8fad5b-d9cb-469f-a165-70867728950e")
    await past.job("failed", error="no file 7c9e6679-7425-40de-944b-e07fc1f90ae7")
    await past.job("failed", error="x" * 500)
    first, second, third = await measured(dsn, failure_measures)
    assert first["error_message"] == "node f__<n> failed: timed out after <n> s"
    assert (first["occurrences"], first["example_job_id"], first["workflow_ids"]) == (4, last, ["other", "w"])
    assert (second["error_message"], second["occurrences"]) == ("no file <id>", 2)
    assert third["error_message"] == "x" * 200
    assert len(await measured(dsn, failure_measures, limit=1)) == 1
    [only] = await measured(dsn, failure_measures, "other")
    assert only["occurrences"] == 1


async def test_children_are_counted_under_their_fan_out(dsn: str) -> None:
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.worker()
        await running.run(fan(), {"items": [1, 2, 3]})
        await running.run(fan(handler="fail"), {"items": [1]})
        flaky = single("flaky_echo", params={"fail_attempts": 2}, retry=retry(2), workflow_id="flaky")
        await running.run(flaky)
    by_node = {row["node_id"]: row for row in await measured(dsn, node_measures, "fan")}
    assert set(by_node) == {"START", "spread", "gather", "END"}
    spread = by_node["spread"]
    assert (spread["is_fan_out"], spread["executions"], spread["completed"], spread["failed"]) == (True, 4, 3, 1)
    assert spread["success_rate"] == 0.75
    assert (by_node["gather"]["executions"], by_node["gather"]["skipped"]) == (1, 1)
    work = next(row for row in await measured(dsn, node_measures, "flaky") if row["node_id"] == "work")
    assert (work["executions"], work["completed"], work["total_retries"]) == (1, 1, 2)
    assert work["avg_duration_seconds"] >= 0
    assert await measured(dsn, node_measures, "unheard of") == []


async def test_throughput_includes_empty_buckets(dsn: str) -> None:
    past = Past(dsn)
    await past.job(hours_ago=3, seconds=2)
    await past.job(hours_ago=3, seconds=4)
    await past.job("failed", hours_ago=3)
    await past.job(hours_ago=30)
    asked_at = datetime.now(UTC)
    buckets = await measured(dsn, throughput, hours=6, bucket_minutes=30)
    assert len(buckets) == 13
    starts = [row["bucket_start"] for row in buckets]
    assert all(later - earlier == timedelta(minutes=30) for earlier, later in pairwise(starts))
    # The half hour may have ended meanwhile.
    assert starts[-1] <= datetime.now(UTC) and asked_at < starts[-1] + timedelta(minutes=30)
    assert sum(row["jobs_completed"] for row in buckets) == 2
    busy = [row for row in buckets if row["jobs_completed"]]
    assert all(row["avg_duration_seconds"] is None for row in buckets if row not in busy)
    total = sum(row["avg_duration_seconds"] * row["jobs_completed"] for row in busy)
    assert total == pytest.approx(6)
    assert sum(row["jobs_failed"] for row in buckets) == 1


@pytest.mark.parametrize(
    ("measure", "options", "complaint"),
    [
        (workflow_measures, {"days": 0}, "days must be between 1 and 90, not 0"),
        (failure_measures, {"limit": 101}, "limit must be between 1 and 100, not 101"),
        (throughput, {"hours": 169}, "hours must be between 1 and 168, not 169"),
        (throughput, {"bucket_minutes": 0}, "bucket_minutes must be between 1 and 1440, not 0"),
    ],
)
async def test_an_invalid_range_is_refused(dsn: str, measure: Any, options: Any, complaint: str) -> None:
    with pytest.raises(Invalid, match=complaint):
        await measured(dsn, measure, **options)
