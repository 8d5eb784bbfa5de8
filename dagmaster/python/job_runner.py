"""Run a job to its end in this process, whoever has made it."""

from typing import Any

from dagmaster.errors import Invalid
from dagmaster.python.local import LocalFleet
from dagmaster.python.outcome import JobOutcome
from dagmaster.python.workflows import WorkflowFunction


def run_job_test(job: Any, /, *args: Any, timeout: float | None = None, **inputs: Any) -> JobOutcome:
    """How the job has ended: one that was created, by itself or by its id, or a new one of a workflow function.

    A job that fails is no error here; look at `status`, or call `need_completed()`.
    """
    if isinstance(job, WorkflowFunction):
        given = job.inputs(*args, **inputs)
        return LocalFleet.shared().run(job.workflow, given, called=job.written.called, timeout=timeout)
    return LocalFleet.shared().finish(_id_of(job), timeout=timeout)


def _id_of(job: Any) -> int:
    found = getattr(job, "id", job)
    if isinstance(found, int | str) and str(found).isdecimal():
        return int(found)
    raise Invalid(f"a job is what create_job() gave, its id, or a workflow function, not {job!r}")
