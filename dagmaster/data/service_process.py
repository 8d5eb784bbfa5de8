"""The process of the local data service: the part of ClickHouse's HTTP interface that tables need, on loopback."""

import argparse
import fcntl
import hmac
import logging
import os
import re
import secrets
import select
import socket
import tempfile
import threading
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final, cast
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa

from dagmaster.data.chdb_engine import Folder, insert_file
from dagmaster.data.service import ADDRESS, HOST, READY, USERS, Address, write_address
from dagmaster.errors import DagmasterError, QueryFailed

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 1024 * 1024
MAX_STATEMENT_BYTES: Final = 64 * 1024 * 1024
MAX_LINE_BYTES: Final = 65_536
IDLE_SECONDS: Final = 2.0
WATCH_SECONDS: Final = 0.3
FORMAT: Final = re.compile(r"\s+FORMAT\s+(\w+)\s*$", re.IGNORECASE)
# Rows follow in the next line; a statement that inserts from a query has no format.
INSERT: Final = re.compile(rb"INSERT INTO \S+ FORMAT ArrowStream\n")
CODE: Final = re.compile(r"Code: (\d+)")
ARROW: Final = "ArrowStream"
# Settings of the transport, not of the query.
TRANSPORT: Final = frozenset(
    {"query", "database", "query_id", "wait_end_of_query", "client_protocol_version", "compress", "decompress"}
)


@dataclass(frozen=True, slots=True)
class Request:
    """A statement received over HTTP, with its parameters and settings."""

    sql: str
    output: str
    parameters: Mapping[str, str]
    settings: Mapping[str, str]
    query_id: str
    is_streamed: bool


class Watch(threading.Thread):
    """Kills the queries of disconnected clients: a killed task needs no response."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(name="clients", daemon=True)
        self._folder = folder
        self._waiting: dict[socket.socket, str] = {}
        self._guard = threading.Lock()

    @contextmanager
    def over(self, client: socket.socket, query_id: str) -> Iterator[None]:
        with self._guard:
            self._waiting[client] = query_id
        try:
            yield
        finally:
            with self._guard:
                self._waiting.pop(client, None)

    def run(self) -> None:
        pause = threading.Event()
        while not pause.wait(WATCH_SECONDS):
            with self._guard:
                gone = [query_id for client, query_id in self._waiting.items() if _is_gone(client)]
            for query_id in gone:
                try:
                    self._folder.kill(query_id)
                except DagmasterError as error:
                    log.warning("query %s was not killed, trying again: %s", query_id, error)


class Service(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Folder, key: str) -> None:
        super().__init__((HOST, 0), Handler)
        self.folder, self.key = folder, key
        self.watch = Watch(folder)
        self.watch.start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def service(self) -> Service:
        return cast(Service, self.server)

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        if not self._is_allowed():
            self._read(int(self.headers.get("Content-Length", 0)))
            self._send(403, b"Code: 516. DB::Exception: dagmaster: Authentication failed. (AUTHENTICATION_FAILED)")
            return
        fields = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        length = int(self.headers.get("Content-Length", 0))
        try:
            first = self.rfile.readline(min(length, MAX_LINE_BYTES)) if length else b""
            if INSERT.match(first):
                fields["query"] = first.decode()
                self._insert(fields, length - len(first))
            else:
                self._answer(fields, first + self._read(length - len(first)))
        except DagmasterError as error:
            code = CODE.search(str(error))
            body = f"{code.group(0) if code else 'Code: 0'}. DB::Exception: {error}".encode()
            self._send(500, body, {"X-ClickHouse-Exception-Code": code.group(1) if code else "0"})

    def _insert(self, fields: dict[str, str], length: int) -> None:
        """The rows go through a file: they need not fit into memory, and are inserted completely or not at all."""
        with tempfile.NamedTemporaryFile(suffix=".arrow", dir=self.service.folder.path) as file:
            while length > 0 and (piece := self.rfile.read(min(length, PIECE_BYTES))):
                file.write(piece)
                length -= len(piece)
            if length > 0:
                raise QueryFailed("Code: 33. the rows broke off")
            file.flush()
            request = _request(fields)
            self._whole(request, insert_file(request.sql, file.name))

    def _answer(self, fields: dict[str, str], body: bytes) -> None:
        content_type = self.headers.get("Content-Type", "")
        if content_type.startswith("multipart/form-data"):
            fields |= _form(content_type, body)
        else:
            fields["query"] = f"{fields.get('query', '')}{body.decode()}"
        if urlsplit(self.path).path == "/ping" or not fields.get("query"):
            self._send(200, b"Ok.\n")
            return
        request = _request(fields)
        if request.is_streamed:
            self._stream(request)
        else:
            self._whole(request, request.sql)

    def _whole(self, request: Request, sql: str) -> None:
        with self.service.watch.over(self.connection, request.query_id):
            body = self.service.folder.execute(sql, request.output, request.parameters, request.settings)
        self._send(200, body, {"X-ClickHouse-Query-Id": request.query_id})

    def _stream(self, request: Request) -> None:
        batches = self.service.folder.stream(request.sql, request.parameters, request.settings)
        with self.service.watch.over(self.connection, request.query_id):
            first = next(batches, None)
            if first is None:  # Without rows there are no batches, hence no columns.
                self._whole(request, request.sql)
                return
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                self._write_batches(first.schema, chain([first], batches))
            except (QueryFailed, OSError) as error:
                # The response has started: its missing end tells the client about the error.
                log.warning("an answer broke off: %s", error)
                self.close_connection = True

    def _write_batches(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        with pa.ipc.new_stream(_Chunked(self.wfile), schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _read(self, length: int) -> bytes:
        if length > MAX_STATEMENT_BYTES:
            self.close_connection = True
            raise QueryFailed(f"Code: 62. a statement has at most {MAX_STATEMENT_BYTES} bytes")
        return self.rfile.read(length)

    def _is_allowed(self) -> bool:
        scheme, _, encoded = self.headers.get("Authorization", "").partition(" ")
        try:
            password = b64decode(encoded).partition(b":")[2] if scheme == "Basic" else b""
        except NotBase64:
            return False
        return hmac.compare_digest(password, self.service.key.encode())


class _Chunked:
    """A file whose writes are the chunks of a response."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        piece = memoryview(data).cast("B")
        if len(piece):
            self._file.write(b"%x\r\n" % len(piece))
            self._file.write(piece)
            self._file.write(b"\r\n")
        return len(piece)

    def flush(self) -> None:
        self._file.flush()


def _request(fields: Mapping[str, str]) -> Request:
    sql, query_id = fields["query"].rstrip().rstrip(";"), fields.get("query_id") or secrets.token_hex(8)
    output = "TabSeparated"
    if (found := FORMAT.search(sql)) is not None:
        sql, output = sql[: found.start()], found.group(1)
    settings = {
        name: value for name, value in fields.items() if name not in TRANSPORT and not name.startswith("param_")
    }
    return Request(
        sql,
        output,
        {name.removeprefix("param_"): value for name, value in fields.items() if name.startswith("param_")},
        {**settings, "log_comment": query_id},
        query_id,
        is_streamed=output == ARROW and fields.get("wait_end_of_query") != "1",
    )


def _form(content_type: str, body: bytes) -> dict[str, str]:
    message = BytesParser().parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body)
    parts = cast("list[Message]", message.get_payload()) if message.is_multipart() else []
    return {
        str(part.get_param("name", header="content-disposition")): cast(bytes, part.get_payload(decode=True)).decode()
        for part in parts
    }


def _is_gone(client: socket.socket) -> bool:
    try:
        readable, _, _ = select.select([client], [], [], 0)
        return bool(readable) and client.recv(1, socket.MSG_PEEK) == b""
    except (OSError, ValueError):
        return True


def _stop_without_users(service: Service, users: IO[str]) -> None:
    """Holds the lock until the process has ended: a new user waits, and starts another service."""
    pause = threading.Event()
    while not pause.wait(IDLE_SECONDS):
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        service.shutdown()
        return


def serve(path: Path) -> None:
    folder = Folder(path)
    service = Service(folder, secrets.token_urlsafe(24))
    with (path / USERS).open("a") as users:
        threading.Thread(target=_stop_without_users, args=[service, users], daemon=True).start()
        write_address(path, Address(pid=os.getpid(), port=service.server_address[1], key=service.key))
        with suppress(BrokenPipeError):  # The starting process was killed meanwhile; others may need the service.
            os.write(1, READY)
        os.dup2(2, 1)  # The starting process reads this output to its end.
        service.serve_forever()
        (path / ADDRESS).unlink(missing_ok=True)
        service.server_close()
        folder.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="dagmaster data service")
    parser.add_argument("folder", type=Path)
    path = parser.parse_args().folder
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    code = 1
    try:
        serve(path)
        code = 0
    except Exception:  # Whatever it is, the process must end.
        log.exception("the data service ends")
    # At the end of Python the engine may wait for ever for its own threads, and clients for a port that nobody serves.
    os._exit(code)
