"""The tables of the fleet: processes, handlers, schedules, keys and secrets, and the tasks and mail between them."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Column, DateTime, Identity, Index, Text, text
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB
from sqlmodel import Field

from dagmaster.store.columns import Base, big_column, generated_column, jsonb_column, time_column


class DagOrchestrator(Base, table=True):
    """One heartbeat row per instance; it is the lease of the instance's jobs."""

    __tablename__ = "dag_orchestrators"
    orchestrator_id: str = Field(primary_key=True, max_length=32)
    hostname: str = Field(max_length=255)
    pid: int
    host_key: str = Field(max_length=128)
    status: str = Field(max_length=16)
    started_at: datetime = time_column(default_now=True)
    heartbeat_at: datetime = time_column(default_now=True)
    jobs_owned: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    stats: dict[str, Any] = jsonb_column("{}")


class DagWorker(Base, table=True):
    """One heartbeat row per worker; it is the lease of all tasks that the worker runs."""

    __tablename__ = "dag_workers"
    worker_id: str = Field(primary_key=True, max_length=32)
    hostname: str = Field(max_length=255)
    pid: int
    host_key: str = Field(max_length=128)
    status: str = Field(max_length=16)
    queues: list[str] = Field(sa_column=Column(ARRAY(Text), nullable=False))
    handlers: list[str] | None = Field(default=None, sa_column=Column(ARRAY(Text)))
    concurrency: int
    last_heartbeat: datetime = time_column(default_now=True)
    started_at: datetime = time_column(default_now=True)
    tasks_completed: int = big_column(nullable=False, server_default=text("0"))
    tasks_failed: int = big_column(nullable=False, server_default=text("0"))
    stats: dict[str, Any] = jsonb_column("{}")
    # The desired state: run, drain or stop. The worker gets tasks only while it is `run`.
    wanted: str = Field(default="run", max_length=16, sa_column_kwargs={"server_default": "run"})
    # The API key of a worker without database access; other keys cannot act for it.
    key_id: str | None = Field(default=None, max_length=16)


class DagHandler(Base, table=True):
    """The contract of a handler, as the last worker registered it."""

    __tablename__ = "dag_handlers"
    name: str = Field(primary_key=True, max_length=128)
    queue: str | None = Field(default=None, max_length=128)
    timeout_seconds: float | None = None
    retry: dict[str, Any] | None = jsonb_column()
    # JSON Schema in its original order: the first parameter is first.
    params: Any = Field(default=None, sa_column=Column(JSON))
    documentation: str = Field(default="", sa_type=Text, sa_column_kwargs={"server_default": ""})
    registered_by: str | None = Field(default=None, max_length=32)
    registered_at: datetime = time_column(default_now=True)


class DagSchedule(Base, table=True):
    """The times at which a workflow starts automatically: by cron or at an interval."""

    __tablename__ = "dag_schedules"
    __table_args__ = (Index("ix_dag_schedules_next_at", "next_at", postgresql_where=text("paused_at IS NULL")),)
    schedule_id: str = Field(primary_key=True, max_length=64)
    workflow_id: str = Field(max_length=64)
    workflow_hash: str = Field(max_length=64)
    cron: str | None = Field(default=None, max_length=128)
    interval_seconds: float | None = None
    timezone: str = Field(default="UTC", max_length=64, sa_column_kwargs={"server_default": "UTC"})
    catchup: str = Field(default="last", max_length=8, sa_column_kwargs={"server_default": "last"})
    input_params: dict[str, Any] = jsonb_column("{}")
    paused_at: datetime | None = time_column(nullable=True)
    paused_by: str | None = Field(default=None, max_length=128)
    next_at: datetime | None = time_column(nullable=True)
    last_at: datetime | None = time_column(nullable=True)
    created_at: datetime = time_column(default_now=True)
    updated_at: datetime = time_column(default_now=True)


class DagApiKey(Base, table=True):
    """API keys and their roles. Only the hash of a key is stored."""

    __tablename__ = "dag_api_keys"
    __table_args__ = (
        Index("uq_dag_api_keys_name", "name", unique=True, postgresql_where=text("revoked_at IS NULL")),
        CheckConstraint(
            "role IN ('admin', 'operator', 'worker', 'partner', 'viewer', 'reviewer')", name="ck_dag_api_keys_role"
        ),
    )
    key_id: str = Field(primary_key=True, max_length=16)
    name: str = Field(max_length=128)
    role: str = Field(max_length=16)
    key_hash: str = Field(max_length=64)
    # The one platform that a partner or a reviewer acts for.
    platform_id: str | None = Field(default=None, max_length=64)
    created_at: datetime = time_column(default_now=True)
    created_by: str = Field(default="", max_length=128, sa_column_kwargs={"server_default": ""})
    expires_at: datetime | None = time_column(nullable=True)
    revoked_at: datetime | None = time_column(nullable=True)
    last_used_at: datetime | None = time_column(nullable=True)


class DagSecret(Base, table=True):
    """Generated secrets of the fleet, created by the first process that needs them."""

    __tablename__ = "dag_secrets"
    name: str = Field(primary_key=True, max_length=64)
    value: str = Field(sa_type=Text)
    created_at: datetime = time_column(default_now=True)


class TaskColumns(Base):
    """The columns that a task keeps from waiting to running."""

    task_id: str = Field(primary_key=True, max_length=128)
    job_id: int = big_column(nullable=False)
    node_id: str = Field(max_length=64)
    retry_count: int
    queue: str = Field(max_length=128)
    priority: int
    job_started_at: datetime = time_column()
    handler: str = Field(max_length=128)
    timeout_seconds: float
    correlation_id: str | None = Field(default=None, max_length=128)
    trace_parent: str | None = Field(default=None, max_length=64)
    dispatched_at: datetime = time_column()


class DagTaskWaiting(TaskColumns, table=True):
    """The content of the queues. Narrow and short-lived: a claim reads the parameters from the node."""

    __tablename__ = "dag_tasks_waiting"
    __table_args__ = (
        Index(
            "ix_dag_tasks_waiting_order",
            "queue",
            text("priority DESC"),
            "job_started_at",
            "seq",
            postgresql_where=text("NOT held"),
        ),
        Index("ix_dag_tasks_waiting_job", "job_id"),
    )
    seq: int = Field(sa_column=Column(BigInteger, Identity(always=True), nullable=False))
    # The task of a paused job: it keeps its place, but cannot be claimed.
    held: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})


class DagTaskRunning(TaskColumns, table=True):
    """The tasks that workers hold, leased by the worker's heartbeat.

    Without a worker the attempt runs elsewhere, and is reported by HTTP or as a row: only its timeout ends it.
    """

    __tablename__ = "dag_tasks_running"
    __table_args__ = (Index("ix_dag_tasks_running_worker", "worker_id"), Index("ix_dag_tasks_running_job", "job_id"))
    worker_id: str | None = Field(default=None, max_length=32)
    claimed_at: datetime = time_column(default_now=True)


class DagMail(Base, table=True):
    """Everything that may change a job, until its owner has processed it."""

    __tablename__ = "dag_mailbox"
    mail_id: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    job_id: int = big_column(nullable=False)
    kind: str = Field(max_length=32)
    node_id: str | None = Field(default=None, max_length=64)
    task_id: str | None = Field(default=None, max_length=128)
    worker_id: str | None = Field(default=None, max_length=128)
    output: Any = Field(default=None, sa_column=Column(JSON))
    # The sizes, known before the content is read, whoever wrote the row.
    output_bytes: int | None = generated_column("octet_length(output::text)")
    data_bytes: int | None = generated_column(
        "coalesce(octet_length(data::text), 0) + coalesce(octet_length(error), 0)"
    )
    error: str | None = Field(default=None, sa_type=Text)
    duration_ms: int | None = big_column()
    data: dict[str, Any] | None = jsonb_column()
    created_at: datetime = Field(
        default=None,
        sa_column=Column(DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    )


class DagTaskCache(Base, table=True):
    """Results that are reused for tasks with the same handler, version and parameters."""

    __tablename__ = "dag_task_cache"
    __table_args__ = (
        Index("ix_dag_task_cache_expires_at", "expires_at"),
        Index("ix_dag_task_cache_handler", text("translate(handler, ':', '.')")),
    )
    cache_key: str = Field(primary_key=True, sa_type=Text)
    handler: str = Field(sa_type=Text)
    output: dict[str, Any] = Field(sa_column=Column(JSONB, nullable=False))
    job_id: int = big_column(nullable=False)
    task_id: str = Field(sa_type=Text)
    stored_at: datetime = time_column(default_now=True)
    expires_at: datetime | None = time_column(nullable=True)
