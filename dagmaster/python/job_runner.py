"""Run a job to its end in this process."""

from typing import Any

from dagmaster.errors import Invalid
from dagmaster.python.local import LocalFleet
from dagmaster.python.outcome import JobOutcome
from dagmaster.python.workflows import WorkflowFunction


def run_job_test(job: Any, /, *args: Any, timeout: float | None = None, **inputs: Any) -> JobOutcome:
    """Run a job from `create_job`, a job id or a new job of a workflow function; returns its outcome.

    A failed job raises no error: check `status` or call `need_completed()`.
    """
    if isinstance(job, WorkflowFunction):
        job_inputs = job.inputs(*args, **inputs)
        return LocalFleet.shared().run(job.workflow, job_inputs, called=job.written.called, timeout=timeout)
    return LocalFleet.shared().finish(_id_of(job), timeout=timeout)


def _id_of(job: Any) -> int:
    job_id = getattr(job, "id", job)
    if isinstance(job_id, int | str) and str(job_id).isdecimal():
        return int(job_id)
    raise Invalid(f"expected a job from create_job(), a job id or a workflow function, not {job!r}")
