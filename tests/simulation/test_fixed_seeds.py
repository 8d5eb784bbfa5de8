"""Two thousand worlds, the same each time; `make test-quick` tries the first of them, `make simulate` others."""

import os

import pytest

from simulation.run import run_many

RUNS, CHUNKS = int(os.environ.get("SIMULATION_WORLDS", "2000")), 8


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_job_ends_as_it_should_whatever_goes_wrong(chunk: int) -> None:
    seeds = range(chunk * RUNS // CHUNKS, (chunk + 1) * RUNS // CHUNKS)
    report = run_many(seeds)
    assert report.runs == len(seeds)
    assert report.jobs.total() == len(seeds)
