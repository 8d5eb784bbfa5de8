"""How jobs went, in figures."""

from typing import Generic, TypeVar

from pydantic import Field

from dagmaster.schemas.common import Id, Reply, Time

T = TypeVar("T")


class Period(Reply):
    """Which time the figures are of."""

    from_: Time = Field(alias="from")
    to: Time


class Measures(Reply, Generic[T]):
    period: Period
    items: list[T]


class Cause(Reply):
    error_message: str
    occurrences: int


class WorkflowMeasure(Reply):
    """`success_rate` is of the jobs that completed or failed, null when there is none; durations of those completed."""

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
    """A fan-out stands for its children. `executions` counts nodes, however often each was tried."""

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
    """In the messages `<n>` stands for any whole number and `<id>` for any UUID; digits within words stay."""

    workflow_ids: list[str]
    example_job_id: Id
    first_at: Time
    last_at: Time


class FailureMeasures(Measures[FailureMeasure]):
    """`total` counts all jobs of the time that failed, also those whose cause is not among the items."""

    total: int


class Throughput(Reply):
    """One stretch of time; the last one is not over yet."""

    bucket_start: Time
    jobs_completed: int
    jobs_failed: int
    avg_duration_seconds: float | None
