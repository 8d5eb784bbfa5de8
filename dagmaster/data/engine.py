"""The engines that run statements: one protocol, and the choice by URL."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from dagmaster.errors import Invalid, Misconfigured

if TYPE_CHECKING:
    import pyarrow as pa

INSTALL: Final = "install it with: pip install 'dagmaster[data]'"

# Every query runs with them: a missing partner of a join is NULL, and a cast of NULL is NULL.
SETTINGS: Final = {
    "join_use_nulls": 1,
    "cast_keep_nullable": 1,
    "output_format_arrow_string_as_string": 1,
    "output_format_arrow_low_cardinality_as_dictionary": 0,
    "session_timezone": "UTC",
}


class Engine(Protocol):
    """Calls block; any thread may make them. Who appends to a table holds `appending`."""

    appending: Lock

    def query(self, sql: str, parameters: Mapping[str, str]) -> "pa.Table": ...

    def batches(self, sql: str, parameters: Mapping[str, str]) -> "Iterator[pa.RecordBatch]": ...

    def command(self, sql: str, parameters: Mapping[str, str] | None = None) -> None: ...

    def insert(self, table: str, columns: str, rows: "pa.Table", token: str | None = None) -> None: ...

    def close(self) -> None: ...


def open_engine(url: str) -> Engine:
    """`chdb:///folder` is ClickHouse in this process, on that folder."""
    parts = urlsplit(url)
    if parts.scheme != "chdb":
        raise Invalid(f"{url[:80]!r} is not the URL of a data engine, such as chdb:///var/lib/dagmaster/tables")
    folder = Path(unquote(parts.netloc + parts.path))
    try:
        module: Any = import_module("dagmaster.data.chdb_engine")
    except ModuleNotFoundError as error:
        raise Misconfigured(f"tables need the module {error.name}; {INSTALL}") from error
    engine: Engine = module.open_folder(folder)
    return engine


def folder_url(folder: Path) -> str:
    return f"chdb://{folder.resolve()}"
