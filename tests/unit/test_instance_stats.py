from datetime import UTC, datetime
from time import process_time
from typing import Any

import orjson
import pytest
from engine_bench import AT_ONCE, NO_RETRY, START, Bench, end, fan_out, task

from dagmaster.engine.change_set import ChangeSet
from dagmaster.ids import JobId
from dagmaster.orchestrator import instance_stats
from dagmaster.orchestrator.instance_stats import Histogram, InstanceStats, Phase, Rate, Record


class Remembered(Bench):
    """A job whose change sets are recorded as they are committed."""

    def __init__(self, memory: InstanceStats, **nodes: Any) -> None:
        self.memory = memory
        super().__init__(**nodes)

    def send(self, *messages: Any) -> ChangeSet:
        changes = super().send(*messages)
        self.memory.record([changes])
        return changes


def run(memory: InstanceStats, *, succeeds: bool = True) -> Remembered:
    bench = Remembered(memory, work=task(retry=NO_RETRY), end=end("work"))
    bench.start()
    bench.wait(2)
    bench.begin("work")
    bench.wait(3)
    if succeeds:
        bench.complete("work")
    else:
        bench.fail("work", "the disk is full")
    return bench


def test_the_last_hundred_completions_and_failures_are_kept() -> None:
    memory = InstanceStats()
    for _ in range(instance_stats.LAST + 5):
        run(memory)
    run(memory, succeeds=False)
    summary = memory.summary()
    assert len(summary["completions"]) == instance_stats.LAST
    assert summary["completions"][-1] == {
        "job_id": "42",
        "workflow_id": "bench",
        "at": START.replace(second=5),
        "duration_seconds": 5.0,
    }
    [failure] = summary["failures"]
    assert failure["error"] == "node work failed: the disk is full"
    assert summary["counters"]["jobs_completed"] == instance_stats.LAST + 5
    assert summary["counters"]["jobs_failed"] == 1


def test_only_tasks_are_counted_not_engine_nodes() -> None:
    memory = InstanceStats()
    run(memory)
    counters = memory.summary()["counters"]
    assert (counters["tasks_created"], counters["tasks_completed"], counters["tasks_failed"]) == (1, 1, 0)
    assert (counters["jobs_created"], counters["jobs_cancelled"]) == (1, 0)


def test_durations_are_counted_in_buckets() -> None:
    memory = InstanceStats()
    run(memory)
    histograms = memory.summary()["histograms"]
    assert {name: histogram["sum"] for name, histogram in histograms.items()} == {
        "job_duration_seconds": 5.0,
        "task_duration_seconds": 0.005,
        "task_claim_latency_seconds": 2.0,
        "cycle_seconds": 0,
    }
    claims = histograms["task_claim_latency_seconds"]
    assert claims["counts"][claims["bounds"].index(5)] == sum(claims["counts"]) == 1


@pytest.mark.parametrize(("value", "bucket"), [(0.5, 0), (1, 0), (1.5, 1), (3, 2)])
def test_an_upper_bound_belongs_to_its_bucket(value: float, bucket: int) -> None:
    histogram = Histogram((1, 2))
    histogram.observe(value)
    assert histogram.counts.index(1) == bucket


def test_failing_handlers_and_queues_are_counted_by_attempt() -> None:
    memory = InstanceStats()
    bench = Remembered(memory, work=task(retry=AT_ONCE), end=end("work")).start()
    for error in ("once", "twice"):
        bench.fail("work", error)
    bench.complete("work")
    summary = memory.summary()
    assert summary["failing_handlers"] == {"work": {"failed": 2, "last_error": "twice"}}
    assert summary["failing_queues"] == {"tasks": {"failed": 2, "last_error": "twice"}}
    assert summary["error_rate"] == pytest.approx(2 / 3, abs=1e-4)


def test_revoked_tasks_are_not_failures() -> None:
    memory = InstanceStats()
    bench = Remembered(memory, f=fan_out([1, 2, 3]), end=end("f")).start()
    bench.fail("f__1", "no luck")
    summary = memory.summary()
    assert summary["counters"]["tasks_failed"] == 1
    assert summary["failing_handlers"]["work"]["failed"] == 1


def test_a_cancelled_job_is_neither_success_nor_failure() -> None:
    memory = InstanceStats()
    Remembered(memory, work=task(), end=end("work")).cancel()
    summary = memory.summary()
    assert (summary["counters"]["jobs_created"], summary["counters"]["jobs_cancelled"]) == (1, 1)
    assert (summary["completions"], summary["failures"], summary["workflows"]) == ([], [], {})


def test_averages_are_exact_at_first_and_then_weighted_to_recent_runs() -> None:
    record = Record()
    for seconds in (1, 2, 3):
        record.add(seconds, success=seconds != 2)
    assert record.avg_duration_seconds == pytest.approx(2)
    assert record.success_rate == pytest.approx(2 / 3)
    for _ in range(10 * instance_stats.MOVING):
        record.add(10, success=False)
    assert record.avg_duration_seconds == pytest.approx(10, rel=0.01)
    assert record.success_rate < 0.01


def test_the_number_of_names_is_limited_and_the_least_recent_is_dropped() -> None:
    known: dict[str, Record] = {}
    for number in range(instance_stats.MAX_NAMES):
        instance_stats._renewed(known, str(number), Record)
    first = instance_stats._renewed(known, "0", Record)
    instance_stats._renewed(known, "new", Record)
    assert len(known) == instance_stats.MAX_NAMES
    assert known["0"] is first
    assert "1" not in known


def test_a_rate_covers_the_last_minute() -> None:
    rate = Rate()
    rate.add(5, 1000.2)
    rate.add(1, 1030)
    assert rate.sum(1059) == 6
    assert rate.sum(1060) == 1
    assert rate.sum(5000) == 0
    rate.add(2, 5000)
    assert rate.sum(5000) == 2


def test_the_duration_of_each_phase_is_recorded() -> None:
    memory = InstanceStats()
    memory.begin_cycle(datetime.now(UTC))
    memory.enter(Phase.EVALUATING_JOBS)
    memory.processing_job_id = JobId(7)
    memory.enter(Phase.DISPATCHING)
    summary = memory.summary()
    assert (summary["current_phase"], summary["processing_job_id"]) == ("dispatching", "7")
    memory.end_cycle(had_work=True)
    summary = memory.summary()
    assert (summary["current_phase"], summary["processing_job_id"]) == ("idle", None)
    assert {name: counts["count"] for name, counts in summary["phases"].items()} == dict.fromkeys(Phase, 1)
    assert summary["cycle_duration_avg_ms"] > 0
    memory.begin_cycle(datetime.now(UTC))
    memory.end_cycle(had_work=False)
    assert sum(memory.cycle_seconds.counts) == 1, "looking in vain is no cycle to be measured"


def test_the_statistics_are_json() -> None:
    memory = InstanceStats()
    run(memory)
    run(memory, succeeds=False)
    memory.gave_up(JobId(5), "half a \ud800 character")
    summary = orjson.loads(orjson.dumps(memory.summary()))
    assert summary["failures"][-1]["job_id"] == "5"
    assert len(orjson.dumps(summary)) < 5000


def test_recording_costs_microseconds_per_step() -> None:
    memory = InstanceStats()
    bench = Remembered(memory, f=fan_out(list(range(500))), end=end("f")).start()
    change_sets = []
    for number in range(200):
        change_sets += [bench.begin(f"f__{number}"), bench.complete(f"f__{number}")]
    best = min(_seconds(change_sets) for _ in range(5))
    assert best / 200 < 10e-6  # About 1.5 µs on an idle machine.


def _seconds(change_sets: list[ChangeSet]) -> float:
    memory, began = InstanceStats(), process_time()
    memory.record(change_sets)
    return process_time() - began
