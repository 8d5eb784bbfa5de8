"""Queues, handlers, workers and orchestrators."""

from pydantic import Field

from dagmaster.schemas.common import Id, Json, Reply, Time


class QueueReply(Reply):
    """`depth` counts the tasks that workers can claim now; `held` counts those of paused jobs."""

    queue: str
    depth: int
    held: int
    running: int
    oldest_wait_seconds: float | None
    consumers: int
    workflows: list[str] = Field(default_factory=list)


class QueuesReply(Reply):
    queues: list[QueueReply]


class HandlerOfFleet(Reply):
    """A registered handler. `params` is a JSON Schema; `workers` are the workers that run it now.

    `is_uniform` is true if there are workers and all of them have this contract, and false if some run other code.
    """

    name: str
    queue: str | None
    timeout_seconds: float | None
    retry: Json | None
    params: Json | None
    documentation: str
    workers: list[str]
    is_uniform: bool
    registered_at: Time


class WorkerReply(Reply):
    """`wanted` is the state that operators requested: run, drain or stop."""

    worker_id: str
    hostname: str
    pid: int
    status: str
    wanted: str
    queues: list[str]
    handlers: list[str] | None
    concurrency: int
    running_tasks: int
    stuck_tasks: list[str] = Field(default_factory=list)
    tasks_completed: int
    tasks_failed: int
    started_at: Time
    last_heartbeat: Time


class OrchestratorStatus(Reply):
    """One instance, or the totals of all live instances."""

    status: str
    is_running: bool
    instance_id: str | None
    hostname: str | None
    started_at: Time | None
    uptime_seconds: float
    last_heartbeat: Time | None
    current_phase: str | None
    active_jobs: int
    pending_results: int | None
    last_cycle_at: Time | None
    tasks_dispatched: int
    results_processed: int
    errors: int
    last_error: str | None


class FleetStatus(OrchestratorStatus):
    instances: list[OrchestratorStatus]


class OrchestratorStats(Reply):
    """`throughput` is tasks per second and `error_rate` the share of failures, both over the last minute."""

    instance_id: str | None
    cycles: int
    throughput: float
    cycle_duration_avg_ms: float | None
    error_rate: float
    counters: dict[str, int] = Field(default_factory=dict)
    failing_handlers: Json = Field(default_factory=dict)
    failing_queues: Json = Field(default_factory=dict)
    workflows: Json = Field(default_factory=dict)


class FleetStats(OrchestratorStats):
    instances: list[OrchestratorStats]


class OrchestratorActivity(Reply):
    instance_id: str
    current_cycle_id: int
    cycle_started_at: Time | None
    phase: str
    processing_job_id: Id | None
    processing_node_id: str | None
    completions: list[Json] = Field(default_factory=list)
    failures: list[Json] = Field(default_factory=list)


class FleetActivity(OrchestratorActivity):
    """The most recently active instance; `instances` has all of them."""

    queue_depth: int
    db_unprocessed_results: int
    instances: list[OrchestratorActivity]
