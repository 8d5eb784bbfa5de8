"""The outcome of a job."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any

from dagmaster.errors import DagmasterError
from dagmaster.model.states import JobStatus


class JobFailed(DagmasterError):
    """The job has not completed."""

    def __init__(self, message: str = "", *, job_id: int = 0, status: JobStatus = JobStatus.FAILED) -> None:
        super().__init__(message)
        self.job_id, self.status = job_id, status


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """`result` holds the outputs by node, `log` the last lines of the task that failed."""

    job_id: int
    status: JobStatus
    error: str | None = None
    result: Mapping[str, Any] | None = field(default=None, repr=False)
    inputs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    log: str | None = field(default=None, repr=False)

    @property
    def is_completed(self) -> bool:
        return self.status is JobStatus.COMPLETED

    def need_completed(self) -> None:
        """Raises JobFailed, with the caller's traceback, unless the job completed."""
        if self.is_completed:
            return
        reason = self.error or "no error message"
        error = JobFailed(f"job {self.job_id} {self.status}: {reason}", job_id=self.job_id, status=self.status)
        if self.log:
            error.add_note(f"The log of the task:\n{indent(self.log, '  ')}")
        raise error
