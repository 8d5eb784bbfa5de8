"""The tables of the fleet: its processes, handlers, schedules, keys and secrets."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Column, Index, Text, text
from sqlalchemy.dialects.postgresql import ARRAY, JSON
from sqlmodel import Field

from dagmaster.store.columns import (
    Base,
    big_column,
    jsonb_column,
    time_column,
)


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
