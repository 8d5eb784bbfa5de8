"""Fixed statements of all engines, apart from plans."""

from typing import Final

from dagmaster.data.sql import DATABASE, ROW_ID, quote

DEDUPLICATION_WINDOW: Final = 10_000
CREATE_DATABASE: Final = f"CREATE DATABASE IF NOT EXISTS {DATABASE}"
KILL: Final = "KILL QUERY WHERE query_id = {id:String} ASYNC"
# chdb assigns query ids itself.
KILL_BY_COMMENT: Final = "KILL QUERY WHERE Settings['log_comment'] = {id:String} ASYNC"
# LZ4 after Delta, not ZSTD: a tenth of the bytes, and seven times as fast to read, which each chunk of a table needs.
ROW_ID_COLUMN: Final = f"{quote(ROW_ID)} UInt64 CODEC(Delta, LZ4)"
SIZE: Final = (
    "SELECT sum(ifNull(total_bytes, 0)) AS size FROM system.tables WHERE concat(database, '.', name) = {t:String}"
)


def create_table(table: str, columns: str) -> str:
    return (
        f"CREATE TABLE IF NOT EXISTS {table} ({columns}) ENGINE = MergeTree ORDER BY {quote(ROW_ID)} "
        f"SETTINGS non_replicated_deduplication_window = {DEDUPLICATION_WINDOW}"
    )


def insert_select(table: str, columns: str, sql: str) -> str:
    return f"INSERT INTO {table} ({columns}) {sql}"
