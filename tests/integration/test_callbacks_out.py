import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import orjson
import pytest
from fleet import fleet, rows, single

from dagmaster.orchestrator.callbacks import CallbackOptions, Callbacks, retry_seconds, sign
from dagmaster.orchestrator.shared_connection import SharedConnection
from dagmaster.store.connect import opened
from dagmaster.store.secrets import derive, get_secret
from dagmaster.url_policy import Policy, policy_of

SECRET = b"a secret of the fleet"
LOCAL = policy_of(["127.0.0.1"])


@dataclass
class Call:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """A real server that returns these statuses in turn; the last one repeats."""

    statuses: list[int] = field(default_factory=lambda: [200])
    calls: list[Call] = field(default_factory=list)
    extra: str = ""
    silent: bool = False
    port: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def url(self, path: str = "/hook?token=t") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def called(self, times: int = 1) -> None:
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(lambda: len(self.calls) >= times)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            body = await reader.readexactly(int(headers["content-length"]))
            async with self.changed:
                self.calls.append(Call(first.split()[1], headers, body))
                self.changed.notify_all()
            if self.silent:
                await reader.read()
                return
            status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
            writer.write(f"HTTP/1.1 {status} X\r\n{self.extra}content-length: 2\r\n\r\nok".encode())
            await writer.drain()
        finally:
            writer.close()


@asynccontextmanager
async def receiving(*statuses: int, **options: Any) -> AsyncIterator[Receiver]:
    receiver = Receiver(list(statuses) or [200], **options)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        yield receiver


def options(**chosen: Any) -> CallbackOptions:
    return CallbackOptions(**{"policy": LOCAL, "secret": SECRET, "first_delay_seconds": 0.0, **chosen})


async def owe(dsn: str, url: str, *, job_id: int = 7, status: str = "completed") -> None:
    """An ended job with a callback, as the trigger stores it."""
    await rows(
        dsn,
        """INSERT INTO dagapp.dag_jobs
           (job_id, workflow_id, workflow_version, workflow_hash, status, priority, callback_url)
           VALUES (%s, 'w', 1, 'h', 'running', 0, %s)""",
        job_id,
        url,
    )
    await rows(dsn, "UPDATE dagapp.dag_jobs SET status = %s WHERE job_id = %s", status, job_id)


@asynccontextmanager
async def shared(dsn: str) -> AsyncIterator[SharedConnection]:
    connection = SharedConnection(dsn, "test")
    try:
        yield connection
    finally:
        await connection.close()


async def make_calls(dsn: str, chosen: CallbackOptions) -> None:
    async with shared(dsn) as connection:
        await Callbacks(chosen).run_once(connection)


async def callback(dsn: str) -> dict[str, Any]:
    [row] = await rows(dsn, "SELECT * FROM dagapp.dag_callbacks")
    return row


async def events(dsn: str) -> list[dict[str, Any]]:
    query = "SELECT * FROM dagapp.dag_job_events WHERE event_type::text LIKE 'callback%%' ORDER BY event_id"
    return await rows(dsn, query.replace("%%", "%"))


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
async def test_a_signed_callback_is_sent_for_every_final_status(dsn: str, status: str) -> None:
    async with receiving(204) as receiver:
        await owe(dsn, receiver.url(), job_id=2**62, status=status)
        await make_calls(dsn, options(public_url="https://dag.example"))
    [call] = receiver.calls
    assert call.path == "/hook?token=t"
    assert orjson.loads(call.body) == {
        "id": str(2**62),
        "status": status,
        "result_url": f"https://dag.example/api/v1/jobs/{2**62}",
    }
    assert call.headers["host"] == f"127.0.0.1:{receiver.port}"
    signed = [call.headers[f"webhook-{name}"] for name in ("id", "timestamp", "signature")]
    assert signed[2] == sign(derive(SECRET, "callback_signing"), signed[0], int(signed[1]), call.body)
    row = await callback(dsn)
    assert (row["status"], row["attempts"], row["response_status"]) == ("delivered", 1, 204)
    assert row["delivered_at"] is not None
    [event] = await events(dsn)
    assert (event["job_id"], event["event_type"], event["event_status"]) == (2**62, "callback_delivered", "success")
    assert event["event_data"]["host"] == "127.0.0.1"


async def test_without_a_configured_secret_the_generated_one_signs(dsn: str) -> None:
    async with receiving() as receiver, opened(dsn, application="test") as conn:
        await owe(dsn, receiver.url())
        await make_calls(dsn, options(secret=None))
        secret = await get_secret(conn, "callback_signing")
    [call] = receiver.calls
    signed = [call.headers[f"webhook-{name}"] for name in ("id", "timestamp", "signature")]
    assert signed[2] == sign(secret, signed[0], int(signed[1]), call.body)
    assert orjson.loads(call.body)["result_url"] is None


async def test_a_failed_callback_is_retried_with_the_same_id(dsn: str) -> None:
    async with receiving(500, 503, 200) as receiver:
        await owe(dsn, receiver.url())
        await make_calls(dsn, options())
    assert len(receiver.calls) == 3
    assert len({call.headers["webhook-id"] for call in receiver.calls}) == 1
    assert (await callback(dsn))["status"] == "delivered"
    assert [event["event_type"] for event in await events(dsn)] == ["callback_delivered"]


async def test_a_retry_waits_for_its_back_off(dsn: str) -> None:
    async with receiving(500) as receiver:
        await owe(dsn, receiver.url())
        await make_calls(dsn, options(first_delay_seconds=1000.0))
        await make_calls(dsn, options(first_delay_seconds=1000.0))
    row = await callback(dsn)
    assert len(receiver.calls) == 1
    assert (row["status"], row["last_error"], row["response_status"]) == ("waiting", "the receiver returned 500", 500)
    assert 790 < (row["next_attempt_at"] - row["last_attempt_at"]).total_seconds() < 1210


def test_the_delay_doubles_up_to_an_hour() -> None:
    delays = [retry_seconds(attempts, 5.0, Random(1)) for attempts in (1, 2, 3, 20, 10_000)]
    for delay, middle in zip(delays, (5, 10, 20, 3600, 3600), strict=True):
        assert 0.8 * middle <= delay <= 1.2 * middle


async def test_after_the_last_attempt_the_timeline_shows_the_error_without_the_full_url(dsn: str) -> None:
    async with receiving(500) as receiver:
        await owe(dsn, receiver.url("/hook?token=hidden"))
        await make_calls(dsn, options(max_attempts=2))
    assert len(receiver.calls) == 2
    assert (await callback(dsn))["status"] == "failed"
    [event] = await events(dsn)
    assert (event["event_type"], event["error_message"]) == ("callback_failed", "the receiver returned 500")
    assert "hidden" not in str(event)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirects_are_not_followed(dsn: str, status: int) -> None:
    async with receiving() as elsewhere, receiving(status, extra=f"location: {elsewhere.url()}\r\n") as receiver:
        await owe(dsn, receiver.url())
        await make_calls(dsn, options(max_attempts=1))
    assert (len(receiver.calls), elsewhere.calls) == (1, [])
    assert (await callback(dsn))["status"] == "failed"


async def test_a_receiver_that_returns_410_is_not_called_again(dsn: str) -> None:
    async with receiving(410) as receiver:
        await owe(dsn, receiver.url())
        await make_calls(dsn, options())
    assert len(receiver.calls) == 1
    assert (await callback(dsn))["status"] == "failed"


async def test_a_disallowed_address_is_never_called(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    async with receiving() as receiver:
        await owe(dsn, f"http://127.0.0.1:{receiver.port}/?token=hidden")
        await make_calls(dsn, options(policy=Policy(allow_http=True)))
    assert receiver.calls == []
    row = await callback(dsn)
    assert (row["status"], row["attempts"]) == ("failed", 1)
    assert "not allowed" in row["last_error"]
    assert "hidden" not in caplog.text


async def test_a_host_name_is_resolved_once_and_that_address_is_called(dsn: str) -> None:
    answers = [["127.0.0.1"]]

    async def look_up(host: str, port: int) -> Sequence[str]:
        return answers.pop()

    async with receiving() as receiver:
        await owe(dsn, f"http://inner.example:{receiver.port}/x")
        await make_calls(dsn, options(policy=policy_of(["inner.example"]), look_up=look_up))
    [call] = receiver.calls
    assert call.headers["host"] == f"inner.example:{receiver.port}"


async def test_a_receiver_that_does_not_respond_times_out(dsn: str) -> None:
    async with receiving(silent=True) as receiver:
        await owe(dsn, receiver.url())
        await make_calls(dsn, options(timeout_seconds=0.2, max_attempts=1))
    assert (await callback(dsn))["last_error"] == "no response within 0.2 s"


async def test_a_slow_receiver_does_not_delay_other_callbacks(dsn: str) -> None:
    async with receiving(silent=True) as slow, receiving() as quick, shared(dsn) as connection:
        await owe(dsn, slow.url(), job_id=1)
        await owe(dsn, quick.url(), job_id=2)
        calls = asyncio.create_task(Callbacks(options(timeout_seconds=30.0)).run_once(connection))
        await slow.called()
        await quick.called()
        await owe(dsn, quick.url(), job_id=3)
        await quick.called(2)
        assert not calls.done()
        calls.cancel()
        await asyncio.gather(calls, return_exceptions=True)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "https://127.0.0.1:1/", "nonsense", "http://[::1", "https://"])
async def test_a_malformed_url_does_not_break_the_chore(dsn: str, url: str) -> None:
    await owe(dsn, url)
    await make_calls(dsn, options(max_attempts=1))
    assert (await callback(dsn))["status"] == "failed"


async def test_a_malformed_response_is_a_failure(dsn: str) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\0\xff hello\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        await owe(dsn, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        await make_calls(dsn, options(max_attempts=1))
    assert (await callback(dsn))["last_error"].startswith("RemoteProtocolError")


async def test_a_long_response_is_not_read_to_its_end(dsn: str) -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n" + b"x" * 8192)
        await writer.drain()
        await reader.read()  # Until the client closes the connection.
        writer.close()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    async with server:
        await owe(dsn, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        await make_calls(dsn, options())
    assert (await callback(dsn))["status"] == "delivered"


async def test_callbacks_of_a_killed_orchestrator_are_sent_by_another(dsn: str) -> None:
    async with receiving(silent=True) as receiver:
        await owe(dsn, receiver.url())
        async with shared(dsn) as connection:
            killed = asyncio.create_task(Callbacks(options(timeout_seconds=30.0)).run_once(connection))
            await receiver.called()
            killed.cancel()
            await asyncio.gather(killed, return_exceptions=True)
        receiver.silent = False
        await make_calls(dsn, options())
        assert len(receiver.calls) == 1
        await rows(dsn, "UPDATE dagapp.dag_callbacks SET next_attempt_at = now()")  # The lease has expired.
        await make_calls(dsn, options())
    row = await callback(dsn)
    assert (row["status"], row["attempts"], len(receiver.calls)) == ("delivered", 2, 2)


async def test_two_orchestrators_send_a_callback_once(dsn: str) -> None:
    chosen: dict[str, Any] = {"callbacks": options(), "callback_seconds": 0.02}
    async with receiving() as receiver, fleet(dsn) as running:
        for _ in range(2):
            await running.orchestrator(**chosen)
        await running.worker()
        job_ids = [await running.submit(single(), callback_url=receiver.url(f"/{number}")) for number in range(10)]
        await running.completed(*job_ids)
        await running.until("SELECT count(*) = 10 AS ok FROM dagapp.dag_callbacks WHERE status = 'delivered'")
        assert sorted(call.path for call in receiver.calls) == [f"/{number}" for number in range(10)]
        assert "callback_delivered" in await running.trace(job_ids[0])
