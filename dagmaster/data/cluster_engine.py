"""A cluster of ClickHouse servers: each Object has a part on every host, and one table over all parts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import parse_qs, urlsplit
from zlib import crc32

import pyarrow as pa

from dagmaster.data.engine import NO_LIMITS, Limits
from dagmaster.data.server_engine import ServerEngine, addresses_of
from dagmaster.data.sql import DATABASE, ROW_ID, quote
from dagmaster.data.statements import create_table, insert_select

PART: Final = "_part"
# Neighbouring rows are on one host, so that a range of row ids reads few hosts.
ROWS_TOGETHER: Final = 65_536
SETTINGS: Final = {"distributed_foreground_insert": "1", "distributed_product_mode": "global"}


class ClusterHost(ServerEngine):
    # Including the codes for an unreachable other host: ATTEMPT_TO_READ_AFTER_EOF, SOCKET_TIMEOUT,
    # NETWORK_ERROR, ALL_CONNECTION_TRIES_FAILED.
    lost_codes = ServerEngine.lost_codes | {32, 209, 210, 279}


class ClusterEngine:
    """Queries go to the first host, which queries the others. No ON CLUSTER, which would need Keeper."""

    def __init__(self, cluster: str, hosts: Sequence[ClusterHost]) -> None:
        self._cluster, self._hosts = cluster, hosts

    def query(self, sql: str, parameters: Mapping[str, str]) -> pa.Table:
        return self._hosts[0].query(sql, parameters)

    def batches(self, sql: str, parameters: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        return self._hosts[0].batches(sql, parameters)

    def create(self, table: str, columns: str) -> None:
        """The parts first: a visible table must be readable."""
        name = table.removeprefix(f"{DATABASE}.")
        for host in self._hosts:
            host.command(create_table(table + PART, columns))
        spread = f"intDiv({quote(ROW_ID)}, {ROWS_TOGETHER})"
        for host in self._hosts:
            host.command(
                f"CREATE TABLE IF NOT EXISTS {table} ({columns}) "
                f"ENGINE = Distributed({quote(self._cluster)}, {quote(DATABASE)}, {quote(name + PART)}, {spread})"
            )

    def insert(self, table: str, rows: pa.Table, token: str | None = None) -> None:
        """On one host, always the same for a token: each host deduplicates its own inserts."""
        key = token if token is not None else f"{table}:{rows[ROW_ID][0].as_py()}"
        self._hosts[crc32(key.encode()) % len(self._hosts)].insert(table + PART, rows, token)

    def fill(self, table: str, columns: str, sql: str, parameters: Mapping[str, str]) -> None:
        for host in self._hosts:
            host.command(f"TRUNCATE TABLE {table}{PART}")
        self._hosts[0].command(insert_select(table, columns, sql), parameters, is_repeatable=False)

    def drop(self, table: str) -> None:
        for host in self._hosts:
            host.drop(table)
            host.drop(table + PART)

    def size_bytes(self, table: str) -> int:
        return sum(host.size_bytes(table + PART) for host in self._hosts)

    def kill(self, query_id: str) -> None:
        for host in self._hosts:
            host.kill(query_id)

    def close(self) -> None:
        for host in self._hosts:
            host.close()


def open_url(url: str, limits: Limits = NO_LIMITS) -> ClusterEngine:
    parts = urlsplit(url)
    hosts = [ClusterHost(limits, SETTINGS, **address) for address in addresses_of(parts)]
    return ClusterEngine(parse_qs(parts.query)["cluster"][0], hosts)
