"""W4: many small jobs at once, one orchestrator and one worker process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from benchmarks import floor_jobs
from benchmarks.costs import Costs, read_costs
from benchmarks.figures import Bar, Figure, Sample
from benchmarks.fleet import Role, separate
from benchmarks.place import Place
from benchmarks.scale import Scale
from benchmarks.submitter import Submitter, open_submitter
from benchmarks.workflows import CHAIN_INPUTS, chain

JOBS_PER_SUBMISSION = 100
JOBS_PER_COMMIT = 200
EVENTS_PER_JOB = 23
