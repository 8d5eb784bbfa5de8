"""The schema as SQL text, from the models. Imports SQLAlchemy, so it is loaded on demand."""

from collections.abc import Iterator

from sqlalchemy import Enum
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import CreateEnumType
from sqlalchemy.schema import CreateIndex, CreateTable

from dagmaster.store.columns import SCHEMA
from dagmaster.store.tables import Base


def render() -> str:
    return "".join(f"{statement};\n\n" for statement in _statements())


def create_table_if_missing(name: str) -> list[str]:
    """The statements that create this table, with its schema and indexes, in another database."""
    table = Base.metadata.tables[f"{SCHEMA}.{name}"]
    statements = [
        f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}",
        str(CreateTable(table, if_not_exists=True).compile(dialect=_dialect())),
    ]
    indexes = [CreateIndex(index, if_not_exists=True) for index in table.indexes]
    return [*statements, *(str(index.compile(dialect=_dialect())) for index in indexes)]


def _dialect() -> postgresql.base.PGDialect:
    return postgresql.dialect()  # type: ignore[no-untyped-call]


def _statements() -> Iterator[str]:
    dialect = _dialect()
    yield f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"
    tables = Base.metadata.sorted_tables
    enums = {c.type.name: c.type for table in tables for c in table.columns if isinstance(c.type, Enum)}
    for enum in enums.values():
        yield str(CreateEnumType(enum.dialect_impl(dialect)).compile(dialect=dialect))
    for table in tables:
        yield str(CreateTable(table).compile(dialect=dialect)).strip()
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            yield str(CreateIndex(index).compile(dialect=dialect))
