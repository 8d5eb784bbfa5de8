"""The tables of jobs: their definitions, nodes, attempts, timelines and callbacks."""

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import BigInteger, Column, DateTime, Double, Enum, Identity, Index, Text, func, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlmodel import Field

from dagmaster.model.states import EndedBy, EventStatus, JobEndedBy, JobStatus, NodeStatus, TaskStatus
from dagmaster.store.columns import (
    ENDED_BY,
    EVENT_STATUS,
    JOB_ENDED_BY,
    JOB_STATUS,
    MAX_ERROR,
    NODE_STATUS,
    SCHEMA,
    TASK_STATUS,
    Base,
    big_column,
    enum_column,
    jsonb_column,
    time_column,
)

EVENT_TYPES = (
    "job_created",
    "job_started",
    "job_completed",
    "job_failed",
    "job_cancelled",
    "job_warning",
    "node_ready",
    "node_dispatched",
    "node_started",
    "node_completed",
    "node_failed",
    "node_retrying",
    "node_skipped",
    "node_checkpoint",
    "node_warning",
    "result_ignored",
    "orchestrator_cycle",
    "orchestrator_error",
    "orchestrator_stall",
    "orchestrator_backpressure",
    "job_taken_over",
    "command",
    "job_paused",
    "job_resumed",
    "job_reopened",
    "node_reopened",
    "callback_delivered",
    "callback_failed",
    "tasks_added",
    "signal_received",
    "approval_requested",
    "approval_decided",
    "schedule_fired",
    "schedule_missed",
)
EVENT_TYPE = Enum(*EVENT_TYPES, name="event_type", schema=SCHEMA)


class DagWorkflow(Base, table=True):
    """Pinned definitions by content: the definition of a job never changes."""

    __tablename__ = "dag_workflows"
    workflow_hash: str = Field(primary_key=True, max_length=64)
    workflow_id: str = Field(max_length=64, index=True)
    version: int
    definition: dict[str, Any] = jsonb_column("{}")
    created_at: datetime = time_column(default_now=True)


class DagJob(Base, table=True):
    __tablename__ = "dag_jobs"
    __table_args__ = (
        Index("ix_dag_jobs_live", "status", postgresql_where=text("status IN ('pending', 'running')")),
        Index("ix_dag_jobs_workflow_id", "workflow_id", "created_at"),
        Index("ix_dag_jobs_created_at", "created_at"),
        Index("ix_dag_jobs_completed_at", "completed_at", postgresql_where=text("completed_at IS NOT NULL")),
        Index("ix_dag_jobs_failed", "completed_at", postgresql_where=text("status = 'failed'")),
        Index("ix_dag_jobs_owner", "owner_id", "owner_heartbeat_at", postgresql_where=text("owner_id IS NOT NULL")),
        Index("ix_dag_jobs_correlation_id", "correlation_id", postgresql_where=text("correlation_id IS NOT NULL")),
        Index("ix_dag_jobs_asset_id", "asset_id", postgresql_where=text("asset_id IS NOT NULL")),
        Index("ix_dag_jobs_parent", "parent_job_id", postgresql_where=text("parent_job_id IS NOT NULL")),
        Index("ix_dag_jobs_schedule", "schedule_id", "scheduled_for", postgresql_where=text("schedule_id IS NOT NULL")),
        Index(
            "uq_dag_jobs_idempotency_key",
            "submitted_by",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key IS NOT NULL"),
        ),
    )
    job_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    workflow_id: str = Field(max_length=64)
    workflow_version: int
    workflow_hash: str = Field(max_length=64)
    status: JobStatus = enum_column(JOB_STATUS)
    priority: int = 0
    input_params: dict[str, Any] = jsonb_column("{}")
    # The size of the inputs as JSON: an orchestrator does not load large ones.
    input_bytes: int | None = big_column()
    result_data: dict[str, Any] | None = jsonb_column()
    error_message: str | None = Field(default=None, max_length=MAX_ERROR)
    # The node that made it fail; finalizers may fail afterwards.
    failed_node: str | None = Field(default=None, max_length=64)
    ended_by: JobEndedBy | None = Field(default=None, sa_column=Column(JOB_ENDED_BY, nullable=True))
    deadline_at: datetime | None = time_column(nullable=True)
    job_metadata: dict[str, Any] = Field(
        sa_column=Column("metadata", JSONB, nullable=False, server_default=text("'{}'::jsonb"))
    )
    # Empty, not null, if unknown: the unique key must also hold for anonymous submitters.
    submitted_by: str = Field(default="", max_length=128, sa_column_kwargs={"server_default": ""})
    correlation_id: str | None = Field(default=None, max_length=128)
    idempotency_key: str | None = Field(default=None, max_length=128)
    request_hash: str | None = Field(default=None, max_length=64)
    callback_url: str | None = Field(default=None, sa_type=Text)
    # The asset version that it processes or exports; the version follows the job (trigger).
    asset_id: str | None = Field(default=None, max_length=64)
    version_ordinal: int | None = None
    trace_parent: str | None = Field(default=None, max_length=64)
    # The attempt of a `workflow` node that this child job belongs to; its end ends the attempt (trigger).
    parent_job_id: int | None = big_column()
    parent_node_id: str | None = Field(default=None, max_length=64)
    parent_task_id: str | None = Field(default=None, max_length=128)
    schedule_id: str | None = Field(default=None, max_length=64)
    scheduled_for: datetime | None = time_column(nullable=True)
    # Signals that no node has waited for yet, by name.
    signals: dict[str, Any] | None = jsonb_column()
    paused_at: datetime | None = time_column(nullable=True)
    paused_by: str | None = Field(default=None, max_length=128)
    resumed_at: datetime | None = time_column(nullable=True)
    # Time since the start in which it was paused, or failed and not yet reopened.
    idle_seconds: float = Field(default=0.0, sa_column_kwargs={"server_default": text("0")})
    owner_id: str | None = Field(default=None, max_length=32)
    owner_epoch: int = big_column(nullable=False, server_default=text("0"))
    owner_heartbeat_at: datetime | None = time_column(nullable=True)
    created_at: datetime = time_column(default_now=True)
    started_at: datetime | None = time_column(nullable=True)
    completed_at: datetime | None = time_column(nullable=True)
    updated_at: datetime = time_column(default_now=True)
    version: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})


class DagNodeState(Base, table=True):
    __tablename__ = "dag_node_states"
    __table_args__ = (
        Index(
            "ix_dag_node_states_task", text("(definition ->> 'task')"), postgresql_where=text("definition IS NOT NULL")
        ),
    )
    job_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    node_id: str = Field(primary_key=True, max_length=64)
    status: NodeStatus = enum_column(NODE_STATUS)
    task_id: str | None = Field(default=None, max_length=128)
    retry_count: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    max_retries: int = Field(default=3, sa_column_kwargs={"server_default": text("3")})
    # Consecutive losses of its worker.
    times_lost: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    parent_node_id: str | None = Field(default=None, max_length=64)
    fan_out_index: int | None = None
    fan_out_item_key: str | None = Field(default=None, max_length=128)
    # West, south, east, north of the item, if it has a location.
    fan_out_item_box: list[float] | None = Field(default=None, sa_column=Column(ARRAY(Double), nullable=True))
    # The queue of the next attempt, if it differs from the definition's (`retry: on_oom`).
    queue: str | None = Field(default=None, max_length=128)
    # Only for nodes that a running task has added; the others are in the workflow's definition.
    definition: dict[str, Any] | None = jsonb_column()
    # The node whose output becomes this node's output.
    result_of: str | None = Field(default=None, max_length=64)
    input_params: dict[str, Any] | None = jsonb_column()
    output: dict[str, Any] | None = jsonb_column()
    # The size of the output as JSON, as it was reported.
    output_bytes: int | None = big_column()
    error_message: str | None = Field(default=None, max_length=MAX_ERROR)
    ended_by: EndedBy | None = Field(default=None, sa_column=Column(ENDED_BY, nullable=True))
    checkpoint_phase: str | None = Field(default=None, max_length=128)
    checkpoint_data: dict[str, Any] | None = jsonb_column()
    checkpoint_saved_at: datetime | None = time_column(nullable=True)
    not_before: datetime | None = time_column(nullable=True)
    created_at: datetime = time_column(default_now=True)
    dispatched_at: datetime | None = time_column(nullable=True)
    started_at: datetime | None = time_column(nullable=True)
    completed_at: datetime | None = time_column(nullable=True)
    updated_at: datetime = time_column(default_now=True)
    version: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})


class DagTaskResult(Base, table=True):
    """One row per attempt. Rows that other programs insert with `processed = false` are mailed to the job's owner."""

    __tablename__ = "dag_task_results"
    __table_args__ = (
        Index("ix_dag_task_results_job", "job_id", "node_id"),
        Index("ix_dag_task_results_unprocessed", "reported_at", postgresql_where=text("NOT processed")),
    )
    task_id: str = Field(primary_key=True, max_length=128)
    job_id: int = big_column(nullable=False)
    node_id: str = Field(max_length=64)
    status: TaskStatus = enum_column(TASK_STATUS)
    output: dict[str, Any] | None = jsonb_column()
    error_message: str | None = Field(default=None, max_length=MAX_ERROR)
    worker_id: str | None = Field(default=None, max_length=128)
    execution_duration_ms: int | None = big_column()
    progress_current: float | None = None
    progress_total: float | None = None
    progress_percent: float | None = None
    progress_message: str | None = Field(default=None, max_length=MAX_ERROR)
    error_type: str | None = Field(default=None, max_length=128)
    ended_by: EndedBy | None = Field(default=None, sa_column=Column(ENDED_BY, nullable=True))
    log_path: str | None = Field(default=None, sa_type=Text)
    peak_memory_bytes: int | None = big_column()
    cpu_seconds: float | None = None
    metrics: dict[str, Any] | None = jsonb_column()
    reported_at: datetime = time_column(default_now=True)
    processed: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})


class DagJobEvent(Base, table=True):
    """The timeline, one partition per day."""

    __tablename__ = "dag_job_events"
    __table_args__: ClassVar[dict[str, Any]] = {"postgresql_partition_by": "RANGE (created_at)"}
    job_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    event_id: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    created_at: datetime = Field(sa_column=Column(DateTime(timezone=True), primary_key=True, server_default=func.now()))
    node_id: str | None = Field(default=None, max_length=64)
    task_id: str | None = Field(default=None, max_length=128)
    event_type: str = enum_column(EVENT_TYPE)
    event_status: EventStatus = enum_column(EVENT_STATUS)
    checkpoint_name: str | None = Field(default=None, max_length=128)
    event_data: dict[str, Any] | None = jsonb_column()
    error_message: str | None = Field(default=None, max_length=MAX_ERROR)
    duration_ms: int | None = big_column()
    source_app: str = Field(max_length=64)


class DagCheckpoint(Base, table=True):
    __tablename__ = "dag_checkpoints"
    __table_args__ = (Index("ix_dag_checkpoints_node", "job_id", "node_id", "checkpoint_id"),)
    checkpoint_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    job_id: int = big_column(nullable=False)
    node_id: str = Field(max_length=64)
    task_id: str = Field(max_length=128)
    phase_name: str = Field(max_length=128)
    phase_index: int | None = None
    phase_total: int | None = None
    progress_current: float | None = None
    progress_total: float | None = None
    progress_message: str | None = Field(default=None, max_length=MAX_ERROR)
    state_data: dict[str, Any] | None = jsonb_column()
    artifacts_completed: list[Any] | None = jsonb_column()
    artifacts_total: int | None = None
    memory_bytes: int | None = big_column()
    disk_bytes: int | None = big_column()
    error_count: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    is_final: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    is_valid: bool = Field(default=True, sa_column_kwargs={"server_default": text("true")})
    created_at: datetime = time_column(default_now=True)


class DagGroup(Base, table=True):
    """Tasks of the Python API that belong together; groups nest."""

    __tablename__ = "dag_groups"
    __table_args__ = (Index("ix_dag_groups_job", "job_id"),)
    group_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    job_id: int = big_column(nullable=False)
    parent_group_id: int | None = big_column()
    name: str = Field(max_length=128)
    created_at: datetime = time_column(default_now=True)


class DagDependency(Base, table=True):
    """The dependencies of added tasks and groups, as their author wrote them. The types are `task` and `group`."""

    __tablename__ = "dag_dependencies"
    job_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    previous_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    previous_type: str = Field(primary_key=True, max_length=8)
    next_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    next_type: str = Field(primary_key=True, max_length=8)


class DagCallback(Base, table=True):
    """Callbacks that are due because a job has ended; written by a trigger in the transaction that ends it."""

    __tablename__ = "dag_callbacks"
    __table_args__ = (
        Index("ix_dag_callbacks_due", "next_attempt_at", postgresql_where=text("status = 'waiting'")),
        Index("ix_dag_callbacks_failed", "created_at", postgresql_where=text("status = 'failed'")),
        Index("ix_dag_callbacks_job", "job_id"),
    )
    callback_id: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    job_id: int = big_column(nullable=False)
    url: str = Field(sa_type=Text)
    job_status: JobStatus = enum_column(JOB_STATUS)
    status: str = Field(default="waiting", max_length=16, sa_column_kwargs={"server_default": "waiting"})
    attempts: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    next_attempt_at: datetime = time_column(default_now=True)
    last_attempt_at: datetime | None = time_column(nullable=True)
    last_error: str | None = Field(default=None, max_length=MAX_ERROR)
    response_status: int | None = None
    created_at: datetime = time_column(default_now=True)
    delivered_at: datetime | None = time_column(nullable=True)
