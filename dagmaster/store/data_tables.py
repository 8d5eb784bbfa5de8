"""The catalogue tables of the data plane."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Index, LargeBinary, Text, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlmodel import Field

from dagmaster.model.data_object import DataObjectState, Scope
from dagmaster.store.columns import Base, big_column, enum_column, enum_type, jsonb_column, time_column

SCOPE = enum_type(Scope, "data_scope")
STATE = enum_type(DataObjectState, "data_object_state")


class DataObject(Base, table=True):
    """An Object: a table in ClickHouse with its origin. The entry is created before the table and removed after it."""

    __tablename__ = "data_objects"
    __table_args__ = (
        Index("ix_data_objects_name", "name", postgresql_where=text("name IS NOT NULL")),
        Index("ix_data_objects_job", "job_id", postgresql_where=text("job_id IS NOT NULL")),
        Index("ix_data_objects_expired", "object_id", postgresql_where=text("state = 'expired'")),
    )
    object_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    name: str | None = Field(default=None, max_length=128)
    scope: Scope = enum_column(SCOPE)
    state: DataObjectState = enum_column(STATE, "creating")
    # The task that created the table; null for tables of programs.
    job_id: int | None = big_column(nullable=True)
    task_id: str | None = Field(default=None, max_length=128)
    # The program that created the table; null for tables of tasks.
    program_id: int | None = big_column(nullable=True)
    # The URL of the engine that holds the table.
    location: str = Field(sa_column=Column(Text, nullable=False))
    row_count: int | None = big_column(nullable=True)
    size_bytes: int | None = big_column(nullable=True)
    columns: list[dict[str, str]] | None = jsonb_column()
    plan: dict[str, Any] | None = jsonb_column()
    sql: str | None = Field(default=None, sa_column=Column(Text, nullable=True))
    # The tables that the plan reads.
    inputs: list[int] = Field(sa_column=Column(ARRAY(BigInteger), nullable=False, server_default=text("'{}'")))
    # The rows of a small table as an Arrow stream, until SQL needs a real table.
    inline_rows: bytes | None = Field(default=None, sa_column=Column(LargeBinary, nullable=True))
    # Whether a table exists, or may exist.
    has_table: bool = Field(sa_column=Column(Boolean, nullable=False, server_default=text("true")))
    created_at: datetime = time_column(default_now=True)


class DataObjectUse(Base, table=True):
    """A node that uses a table, which is kept until the node ends, or its job if the node passed it on."""

    __tablename__ = "data_object_uses"
    __table_args__ = (Index("ix_data_object_uses_node", "job_id", "node_id"),)
    object_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    job_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    node_id: str = Field(max_length=128, primary_key=True)
    is_passed_on: bool = Field(sa_column=Column(Boolean, nullable=False, server_default=text("false")))


class DataProgram(Base, table=True):
    """A program with open tables outside of tasks. Its unfinished tables are dropped after its lease."""

    __tablename__ = "data_programs"
    program_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    heartbeat_at: datetime = time_column(default_now=True)
