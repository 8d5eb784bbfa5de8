"""Jobs under test without pytest: on one embedded server for the whole process."""

import atexit
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dagmaster.testing.databases import Databases
from dagmaster.testing.job import RUN_SECONDS, JobUnderTest


@cache
def _databases() -> Databases:
    """One server for the process, until it exits."""
    databases = Databases()
    atexit.register(databases.close)
    return databases


@contextmanager
def job_under_test(workflow: Any, inputs: Mapping[str, Any] | None = None, **options: Any) -> Iterator[JobUnderTest]:
    """A job on a temporary database, without pytest; the options are those of JobUnderTest."""
    with _databases().fresh() as dsn, TemporaryDirectory(prefix="dagmaster-logs-") as folder:
        yield JobUnderTest(dsn, workflow, inputs, **{"log_dir": Path(folder), **options})


def run_workflow(
    workflow: Any, inputs: Mapping[str, Any] | None = None, *, timeout: float = RUN_SECONDS, **options: Any
) -> JobUnderTest:
    """Run a job to its end."""
    with job_under_test(workflow, inputs, **options) as job:
        return job.run(timeout)
