"""The tables between orchestrators and workers: tasks, mail and cached results."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column, DateTime, Identity, Index, Text, text
from sqlalchemy.dialects.postgresql import JSON, JSONB
from sqlmodel import Field

from dagmaster.store.columns import (
    Base,
    big_column,
    generated_column,
    jsonb_column,
    time_column,
)


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
    __table_args__ = (
        Index("ix_dag_tasks_running_worker", "worker_id"),
        Index("ix_dag_tasks_running_job", "job_id"),
    )
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
