"""A job ends by its deadline: its workflow's, or the operator's default."""

from datetime import timedelta
from typing import Any

import pytest
from engine_bench import JOB, NO_RETRY, Bench, end, task

from dagmaster.engine.change_set import Rules
from dagmaster.model.states import JobStatus
from dagmaster.model.workflow import ApprovalNode, Node, WaitNode

RULES = Rules(default_job_timeout_seconds=100)


def working(**nodes: Any) -> Bench:
    return Bench(rules=RULES, **{"a": task(timeout_seconds=1000), **nodes}, end=end("a", *nodes)).start()


def test_a_job_past_its_deadline_fails() -> None:
    bench = working()
    bench.begin("a")
    bench.wait(99)
    assert bench.status is JobStatus.RUNNING
    bench.wait(1)
    assert (bench.status, bench.error) == (JobStatus.FAILED, "Timeout: the job did not end within 100 s")
    assert bench.store.nodes["a"].ended_by == "revoked"
    assert bench.store.job.failed_node is None


def test_the_deadline_survives_a_change_of_owner() -> None:
    bench = working()
    assert bench.store.job.deadline_at is not None
    bench.wait(50)
    bench.restart()
    bench.wait(50)
    assert bench.status is JobStatus.FAILED


def test_a_pause_extends_the_deadline() -> None:
    bench = working()
    bench.wait(60)
    bench.pause()
    bench.wait(500)
    bench.unpause()
    bench.wait(39)
    assert bench.status is JobStatus.RUNNING
    bench.wait(1)
    assert bench.status is JobStatus.FAILED


@pytest.mark.parametrize("node", [WaitNode(seconds=10_000), ApprovalNode(message="May it?")])
def test_the_default_deadline_does_not_apply_to_jobs_that_may_wait(node: Node) -> None:
    bench = working(w=node)
    assert bench.store.job.deadline_at is None


def test_finalizers_run_after_the_deadline() -> None:
    nodes: dict[str, Any] = {"a": task(retry=NO_RETRY), "end": end("a"), "clean": task(retry=NO_RETRY)}
    bench = Bench(rules=RULES, chains={"finally": ("clean",)}, **nodes).start()
    bench.wait(100)
    assert (bench.status, bench.waiting) == (JobStatus.RUNNING, [f"{JOB}_clean_0"])
    bench.wait(1000)
    bench.complete("clean")
    assert bench.status is JobStatus.FAILED


def test_a_retried_job_gets_its_whole_time_again() -> None:
    bench = working()
    bench.wait(100)
    bench.retry()
    assert bench.status is JobStatus.RUNNING
    bench.wait(99)
    assert bench.status is JobStatus.RUNNING
    bench.complete("a")
    assert bench.status is JobStatus.COMPLETED


def test_a_job_retried_while_paused_gets_its_whole_time_from_the_resume() -> None:
    bench = Bench(rules=RULES, a=task(retry=NO_RETRY), end=end("a")).start()
    bench.begin("a")
    bench.pause()
    bench.wait(500)
    bench.fail("a")
    bench.wait(500)
    bench.retry()
    bench.wait(500)
    bench.unpause()
    assert bench.job.deadline_at == bench.now + timedelta(seconds=100)


def test_the_error_of_a_paused_job_names_its_working_time() -> None:
    bench = working()
    bench.pause()
    bench.wait(500)
    bench.unpause()
    bench.wait(100)
    assert (bench.status, bench.error) == (JobStatus.FAILED, "Timeout: the job did not end within 100 s")
