"""Two thousand fixed worlds; `make test-quick` runs the first of them, `make simulate` runs others."""

import os

import pytest

from dagmaster.model.states import JobStatus
from simulation.ground import Fault
from simulation.run import Report, run_many

RUNS, CHUNKS = int(os.environ.get("SIMULATION_WORLDS", "2000")), 8
# This many worlds cover everything; fewer may not.
TELLING = 250


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_job_ends_correctly_despite_faults(chunk: int) -> None:
    seeds = range(chunk * RUNS // CHUNKS, (chunk + 1) * RUNS // CHUNKS)
    report = run_many(seeds)
    assert report.runs == len(seeds)
    assert report.jobs.total() == len(seeds)
    if len(seeds) >= TELLING:
        assert_every_fault_and_every_ending_is_met(report)


def assert_every_fault_and_every_ending_is_met(report: Report) -> None:
    assert set(report.faults) == set(Fault)
    assert min(report.faults.values()) >= 3
    assert set(report.jobs) == {JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED}
    assert report.jobs[JobStatus.COMPLETED] > report.runs / 2
