"""Column types that the tables share, and the metadata of the schema."""

from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import BigInteger, Column, Computed, DateTime, Enum, MetaData, func, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from dagmaster.model.states import EndedBy, EventStatus, JobEndedBy, JobStatus, NodeStatus, TaskStatus

SCHEMA = "dagapp"
_TIMESTAMPTZ: Any = DateTime(timezone=True)
MAX_ERROR = 2000


class Base(SQLModel):
    metadata: ClassVar[MetaData] = MetaData(schema=SCHEMA)


def enum_type(kind: type[StrEnum], name: str) -> Enum:
    return Enum(kind, name=name, schema=SCHEMA, values_callable=lambda members: [member.value for member in members])


JOB_STATUS = enum_type(JobStatus, "job_status")
NODE_STATUS = enum_type(NodeStatus, "node_status")
TASK_STATUS = enum_type(TaskStatus, "task_status")
ENDED_BY = enum_type(EndedBy, "ended_by")
JOB_ENDED_BY = enum_type(JobEndedBy, "job_ended_by")
EVENT_STATUS = enum_type(EventStatus, "event_status")


def enum_column(kind: Enum, default: str | None = None) -> Any:
    server_default = text(f"'{default}'::{SCHEMA}.{kind.name}") if default else None
    return Field(sa_column=Column(kind, nullable=False, server_default=server_default))


def time_column(*, default_now: bool = False, nullable: bool = False) -> Any:
    options = {"server_default": func.now()} if default_now else {}
    return Field(default=None, sa_type=_TIMESTAMPTZ, nullable=nullable, sa_column_kwargs=options)


def jsonb_column(default: str | None = None, *, nullable: bool = True) -> Any:
    server_default = text(f"'{default}'::jsonb") if default else None
    nullable = nullable and not default
    return Field(default=None, sa_column=Column(JSONB, nullable=nullable, server_default=server_default))


def big_column(*, nullable: bool = True, **options: Any) -> Any:
    return Field(default=None, sa_type=BigInteger, nullable=nullable, sa_column_kwargs=options)


def generated_column(expression: str) -> Any:
    return Field(default=None, sa_column=Column(BigInteger, Computed(expression, persisted=True)))
