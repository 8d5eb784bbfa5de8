"""Statistics of jobs and nodes."""

from typing import Generic, TypeVar

from pydantic import Field

from dagmaster.schemas.common import Id, Reply, Time

T = TypeVar("T")


class Period(Reply):
    """The period that the figures cover."""

    from_: Time = Field(alias="from")
    to: Time


class Measures(Reply, Generic[T]):
    period: Period
    items: list[T]


class Cause(Reply):
    error_message: str
    occurrences: int


class WorkflowMeasure(Reply):
    """`success_rate` covers completed and failed jobs, null if there are none; durations cover completed jobs."""

    workflow_id: str
    total: int
    completed: int
    failed: int
    cancelled: int
    success_rate: float | None
    avg_duration_seconds: float | None
    p50_duration_seconds: float | None
    p95_duration_seconds: float | None
    common_failures: list[Cause]


class NodeMeasure(Reply):
    """A fan-out includes its children. `executions` counts nodes, not attempts."""

    node_id: str
    is_fan_out: bool
    executions: int
    completed: int
    failed: int
    skipped: int
    success_rate: float | None
    avg_duration_seconds: float | None
    total_retries: int


class FailureMeasure(Cause):
    """In messages, `<n>` stands for any integer and `<id>` for any UUID; digits within words stay."""

    workflow_ids: list[str]
    example_job_id: Id
    first_at: Time
    last_at: Time


class FailureMeasures(Measures[FailureMeasure]):
    """`total` counts all failed jobs of the period, including those whose cause is not listed."""

    total: int


class Throughput(Reply):
    """One time bucket; the last one is not over yet."""

    bucket_start: Time
    jobs_completed: int
    jobs_failed: int
    avg_duration_seconds: float | None
