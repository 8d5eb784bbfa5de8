"""A ClickHouse server, over HTTP."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, cast
from urllib.parse import SplitResult, unquote, urlsplit

import clickhouse_connect
import pyarrow as pa
from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError

from dagmaster.data.engine import INSERT_SETTINGS, NO_LIMITS, SETTINGS, Limits, query_id
from dagmaster.data.statements import CREATE_DATABASE, KILL, SIZE, create_table, insert_select
from dagmaster.errors import EngineLost, Invalid, QueryFailed

T = TypeVar("T")
E = TypeVar("E", bound="ServerEngine")

ARROW = "ArrowStream"
CONNECT_SECONDS = 10
ANSWER_SECONDS = 24 * 3600
PORTS = {"http": 8123, "https": 8443}
EXCEPTION = "DB::Exception: "
# The response of a short query is buffered: an error is reported as such, not as a truncated response.
WHOLE = {"wait_end_of_query": "1"}
NOTHING: Mapping[str, str] = {}
# A restarting server is back after some seconds.
PAUSES: Final = (0.1, 0.4, 1.0, 2.0, 4.0, 8.0)
STREAMED = {"cancel_http_readonly_queries_on_client_close": "1"}


class Text:
    """A parameter in ClickHouse's own notation: the client must not quote it again."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


class ServerEngine:
    """One host. Connections are opened on first use, and again in a forked child."""

    kill_statement = KILL
    pauses: Sequence[float] = PAUSES
    # The error code of a stopping server: ABORTED.
    lost_codes: frozenset[int] = frozenset({236})

    def __init__(self, limits: Limits, settings: Mapping[str, str] = NOTHING, **address: Any) -> None:
        self.users = 1
        self._address = address
        self._settings = {**SETTINGS, **limits.settings(), **settings}
        self._client: Any = None
        self._pid = 0
        self._connecting = threading.Lock()

    def query(self, sql: str, parameters: Mapping[str, str]) -> pa.Table:
        answer = self._run(sql, parameters, fmt=ARROW)
        with pa.ipc.open_stream(pa.py_buffer(answer)) as reader:
            return reader.read_all()

    def batches(self, sql: str, parameters: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        settings = {**self._settings, **STREAMED, "query_id": query_id()}
        stream = self.call(lambda client: client.raw_stream(sql, _bound(parameters), settings, fmt=ARROW))
        try:
            with pa.ipc.open_stream(stream) as reader:
                yield from reader
        except (pa.ArrowException, OSError) as error:
            raise QueryFailed(f"the answer broke off: {error}") from error
        finally:
            stream.close()

    def create(self, table: str, columns: str) -> None:
        self.command(create_table(table, columns))

    def insert(self, table: str, rows: pa.Table, token: str | None = None) -> None:
        settings = {**INSERT_SETTINGS, "query_id": query_id()}
        if token:
            settings["insert_deduplication_token"] = token
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        block = sink.getvalue().to_pybytes()
        self.call(
            lambda client: client.raw_insert(table, insert_block=block, settings=settings, fmt=ARROW),
            is_repeatable=token is not None,
        )

    def fill(self, table: str, columns: str, sql: str, parameters: Mapping[str, str]) -> None:
        self.command(f"TRUNCATE TABLE {table}")
        self.command(insert_select(table, columns, sql), parameters, is_repeatable=False)

    def drop(self, table: str) -> None:
        self.command(f"DROP TABLE IF EXISTS {table} SYNC")

    def size_bytes(self, table: str) -> int:
        size: int = self.query(SIZE, {"t": table})["size"][0].as_py()
        return size

    def kill(self, query_id: str) -> None:
        self.call(lambda client: client.raw_query(self.kill_statement, {"id": Text(query_id)}))

    def close(self) -> None:
        """The last user of the engine closes the connections."""
        with _opening:
            self.users -= 1
            if self.users > 0:
                return
            for key in [key for key, engine in _open.items() if engine is self]:
                del _open[key]
        self.disconnect()

    def disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None and self._pid == os.getpid():
            client.close()

    def command(self, sql: str, parameters: Mapping[str, str] = NOTHING, *, is_repeatable: bool = True) -> None:
        self._run(sql, parameters, is_repeatable=is_repeatable)

    def _run(
        self, sql: str, parameters: Mapping[str, str], *, fmt: str | None = None, is_repeatable: bool = True
    ) -> bytes:
        def ask(client: Any) -> bytes:
            settings = {**self._settings, **WHOLE, "query_id": query_id()}
            answer: bytes = client.raw_query(sql, _bound(parameters), settings, fmt=fmt)
            return answer

        return self.call(ask, is_repeatable=is_repeatable)

    def call(self, ask: Callable[[Any], T], *, is_repeatable: bool = True) -> T:
        """Retry an idempotent statement after pauses, until the server responds."""
        for pause in self.pauses if is_repeatable else ():
            try:
                return self._ask(ask)
            except EngineLost:
                time.sleep(pause)
        return self._ask(ask)

    def _ask(self, ask: Callable[[Any], T]) -> T:
        try:
            return ask(self._connected())
        except OperationalError as error:
            raise EngineLost(f"the ClickHouse server {self.host} does not answer: {error}") from error
        except ClickHouseError as error:
            failure = failure_of(error)
            if getattr(error, "code", None) in self.lost_codes:
                raise EngineLost(f"the ClickHouse server {self.host} cannot answer now: {failure}") from error
            raise failure from error

    @property
    def host(self) -> str:
        return f"{self._address['host']}:{self._address['port']}"

    def _connected(self) -> Any:
        with self._connecting:
            if self._client is None or self._pid != os.getpid():
                self._client, self._pid = self._connect(), os.getpid()
            return self._client

    def _connect(self) -> Any:
        client = clickhouse_connect.get_client(
            **self._address,
            autogenerate_session_id=False,
            form_encode_query_params=True,
            connect_timeout=CONNECT_SECONDS,
            send_receive_timeout=ANSWER_SECONDS,
        )
        client.command(CREATE_DATABASE)
        return client


_open: dict[tuple[str, Limits], ServerEngine] = {}
_opening = threading.Lock()


def open_url(url: str, limits: Limits = NO_LIMITS) -> ServerEngine:
    [address, *others] = addresses_of(urlsplit(url))
    if others:
        raise Invalid("several ClickHouse hosts are a cluster; say its name: https://host-1,host-2/?cluster=name")
    return shared(url, limits, lambda: ServerEngine(limits, **address))


def shared(url: str, limits: Limits, make: Callable[[], E]) -> E:
    """The engine that this process already has open, or a new one: connecting takes longer than a short query."""
    with _opening:
        engine: Any = _open.get((url, limits))
        if engine is None:
            engine = _open[url, limits] = make()
        else:
            engine.users += 1
        return cast(E, engine)


def addresses_of(parts: SplitResult) -> list[dict[str, Any]]:
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    addresses = []
    for name in hosts.split(","):
        host, _, port = name.partition(":")
        if not host or (port and not port.isdecimal()):
            raise Invalid(f"{name!r} is not a ClickHouse host, such as clickhouse.example:8123")
        addresses.append(
            {
                "host": host,
                "port": int(port) if port else PORTS[parts.scheme],
                "interface": parts.scheme,
                "username": unquote(user) or "default",
                "password": unquote(password),
            }
        )
    return addresses


def failure_of(error: ClickHouseError) -> QueryFailed:
    """Without the text that the client and the server add around the message."""
    _, mark, message = str(error).partition(EXCEPTION)
    return QueryFailed((message if mark else str(error)).replace(EXCEPTION, "").split(" (version ")[0].strip())


def _bound(parameters: Mapping[str, str]) -> dict[str, Text]:
    return {name: Text(value) for name, value in parameters.items()}
