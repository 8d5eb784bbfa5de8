"""A worker's link to a real server, and its behaviour when the server is away."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest
from fleet import chain, retry, rows, single
from web import Web, web

from dagmaster.errors import DagmasterError, Misconfigured, TaskOver, TooLarge
from dagmaster.handlers.contract import Progress
from dagmaster.ids import JobId, TaskId, WorkerId
from dagmaster.model.access import Role
from dagmaster.queues.contract import Heartbeat, Link, Registration, SavedCheckpoint, TaskMessage, TaskReport, Transport
from dagmaster.queues.http import HttpLink, HttpTransport, ServerUnavailable
from dagmaster.queues.httpbodies import Limits, batches
from dagmaster.queues.httplogs import HttpLogs
from dagmaster.tasklogs import LogUnavailable
from dagmaster.web import remote_workers

OFFER = Registration("far", 7, ("q",), ("echo",), 4)


@asynccontextmanager
async def transport_to(url: str, key: str | None = None, **options: Any) -> AsyncIterator[HttpTransport]:
    transport = HttpTransport(url, key, **options)
    try:
        yield transport
    finally:
        await transport.close()


@asynccontextmanager
async def linked(api: Web, **options: Any) -> AsyncIterator[HttpLink]:
    """A link registered at a server with an orchestrator."""
    await api.fleet.orchestrator()
    async with api.real_server() as url, transport_to(url, **options) as transport, transport.open(None) as link:
        await link.register(OFFER)
        yield link


def fits(transport: HttpTransport, link: HttpLink) -> tuple[Transport, Link]:
    """The type checker compares them with the protocol."""
    return transport, link


async def submitted(api: Web, workflow_id: str = "single") -> int:
    return int((await api.post("/api/v1/jobs", {"workflow_id": workflow_id}, 201))["job_id"])


async def claimed(link: HttpLink, number: int = 1) -> list[TaskMessage]:
    messages: list[TaskMessage] = []
    while len(messages) < number:
        messages += await link.exchange([], number - len(messages))
    return messages


def done(message: TaskMessage, output: bytes = b'{"n":7}', **fields: Any) -> TaskReport:
    return TaskReport(message.task_id, message.job_id, message.node_id, "completed", output, **fields)


def failed(message: TaskMessage, **fields: Any) -> TaskReport:
    return TaskReport(message.task_id, message.job_id, message.node_id, "failed", error="no", **fields)


async def test_a_job_runs_over_the_link(dsn: str) -> None:
    async with web(dsn, chain(3, params={"x": {"y": [1.5, None]}})) as api, linked(api) as link:
        job_id = await submitted(api, "chain")
        for place in range(3):
            [message] = await claimed(link)
            assert (message.job_id, message.node_id, message.retry_count) == (job_id, f"n{place}", 0)
            assert orjson.loads(message.params) == {"x": {"y": [1.5, None]}}
            assert message.dispatched_at.tzinfo is not None
            await link.exchange([done(message)], 0)
        [job] = await api.fleet.completed(job_id)
        assert job["result_data"]["n2"] == {"n": 7}
        await link.leave(Heartbeat(3, 0))
        [worker] = await rows(dsn, "SELECT * FROM dagapp.dag_workers")
        assert (worker["status"], worker["tasks_completed"]) == ("stopped", 3)


async def test_reports_and_a_claim_share_one_request(dsn: str) -> None:
    async with web(dsn, single()) as api, linked(api) as link:
        jobs = [await submitted(api), await submitted(api)]
        [first] = await claimed(link)
        [second] = await link.exchange([done(first)], 4) or await claimed(link)
        await link.exchange([done(second), done(first)], 0)
        await api.fleet.completed(*jobs)


async def test_checkpoints_and_progress_are_sent_over_the_link(dsn: str) -> None:
    async with web(dsn, single(retry=retry(1))) as api, linked(api) as link:
        job_id = await submitted(api)
        [first] = await claimed(link)
        await link.tell(first.task_id, Progress(1, 4, "a quarter"))
        await link.save(first.task_id, SavedCheckpoint("one", b'{"n":1}'))
        await link.save(first.task_id, SavedCheckpoint("two", b'{"n":2}', b'[{"path":"x"}]'))
        assert (await api.get(f"/api/v1/jobs/{job_id}/nodes/work/progress"))["progress_percent"] == 25.0
        await link.exchange([failed(first, error_types=("ValueError",), details={"cpu_seconds": 0.5})], 0)
        [second] = await claimed(link)
        assert (second.checkpoint_phase, second.checkpoint_data) == ("two", b'{"n":2}')
        assert (second.checkpoint_artifacts, second.retry_count) == (b'[{"path":"x"}]', 1)
        assert second.checkpoint_id is not None
        before = await link.discard(second.task_id, second.checkpoint_id, "x is gone")
        assert before is not None
        assert (before.phase, before.data, before.artifacts) == ("one", b'{"n":1}', None)
        assert before.checkpoint_id is not None
        assert await link.discard(second.task_id, before.checkpoint_id, "gone too") is None
        with pytest.raises(TaskOver):
            await link.save(first.task_id, SavedCheckpoint("late", b"{}"))
        [result] = await rows(dsn, "SELECT * FROM dagapp.dag_task_results WHERE task_id = %s", first.task_id)
        assert (result["error_type"], result["cpu_seconds"]) == ("ValueError", 0.5)


async def test_a_checkpoint_that_is_too_large_is_refused_permanently(dsn: str) -> None:
    async with web(dsn, single(), max_output_bytes=1000) as api, linked(api) as link:
        await submitted(api)
        [message] = await claimed(link)
        with pytest.raises(TooLarge, match="1,000"):
            await link.save(message.task_id, SavedCheckpoint("large", b'{"x":"' + b"x" * 2000 + b'"}'))


async def test_orders_arrive_over_the_link(dsn: str) -> None:
    async with web(dsn, single()) as api, linked(api) as link:
        job_id = await submitted(api)
        [message] = await claimed(link)
        assert await link.beat(Heartbeat(1, 2, {"memory": 3}))
        orders = await link.orders([message.task_id])
        assert (orders.withdrawn, orders.desired_state) == (frozenset(), "run")
        [worker] = await rows(dsn, "SELECT * FROM dagapp.dag_workers")
        assert (worker["tasks_completed"], worker["tasks_failed"], worker["stats"]) == (1, 2, {"memory": 3})
        await api.post(f"/api/v1/workers/{worker['worker_id']}/stop")
        await api.post(f"/api/v1/jobs/{job_id}/cancel", {})
        await api.fleet.ended(job_id)
        orders = await link.orders([message.task_id])
        assert (orders.withdrawn, orders.desired_state) == (frozenset([message.task_id]), "stop")


async def test_tasks_of_a_lost_claim_response_are_found(dsn: str) -> None:
    async with web(dsn, single()) as api, linked(api) as link:
        await submitted(api)
        [message] = await claimed(link)
        assert await link.forgotten([]) == [message]
        assert await link.forgotten([message.task_id]) == []


async def test_a_lost_worker_registers_again(dsn: str) -> None:
    async with web(dsn) as api, linked(api) as link:
        assert await link.beat(Heartbeat())
        await rows(dsn, "UPDATE dagapp.dag_workers SET status = 'lost'")
        assert not await link.beat(Heartbeat())
        for ask in (link.orders([]), link.exchange([], 1), link.forgotten([])):
            with pytest.raises(ServerUnavailable):
                await ask
        await link.leave(Heartbeat())
        await link.register(OFFER)
        assert await link.beat(Heartbeat())
        await rows(dsn, "DELETE FROM dagapp.dag_workers")
        assert not await link.beat(Heartbeat())


# Refused reports


async def test_a_refused_result_fails_only_its_task(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    async with web(dsn, single(), max_output_bytes=1000, max_body_bytes=100_000) as api, linked(api) as link:
        jobs = [await submitted(api) for _ in range(3)]
        large, huge, small = await claimed(link, 3)
        sizes = {large.task_id: 2000, huge.task_id: 200_000, small.task_id: 10}
        outputs = [orjson.dumps({"x": "y" * sizes[message.task_id]}) for message in (large, huge, small)]
        pairs = zip((large, huge, small), outputs, strict=True)
        with caplog.at_level(logging.CRITICAL, "dagmaster"):
            await link.exchange([done(message, output) for message, output in pairs], 0)
        ended = {job["job_id"]: job for job in await api.fleet.ended(*jobs)}
        assert ended[small.job_id]["status"] == "completed"
        for message in (large, huge):
            assert ended[message.job_id]["status"] == "failed"
            assert "rejected" in (await api.fleet.nodes(message.job_id))["work"]["error_message"]


def test_reports_are_split_into_requests_that_fit() -> None:
    reports = [
        TaskReport(TaskId(f"1_n{place}_0"), JobId(1), f"n{place}", "completed", b"x" * 30_000) for place in range(10)
    ]
    sent = list(batches(reports, Limits(max_body_bytes=100_000)))
    assert [report for batch in sent for report in batch] == reports
    assert all(sum(len(report.output or b"") for report in batch) < 100_000 for batch in sent)
    assert len(sent) == 5
    assert [len(batch) for batch in batches(reports[:1] * 2500, Limits(max_body_bytes=10**9))] == [1000, 1000, 500]
    assert len(list(batches(reports[:1], Limits(max_body_bytes=10)))) == 1
    assert list(batches([], Limits())) == []


# Faulty servers


async def test_the_link_recovers_from_a_server_outage(dsn: str) -> None:
    async with web(dsn, single()) as api:
        await api.fleet.orchestrator()
        async with api.real_server() as url:
            transport = HttpTransport(url)
            async with transport.open(None) as link:
                await link.register(OFFER)
        for ask in (link.beat(Heartbeat()), link.exchange([], 1), link.register(OFFER)):
            with pytest.raises(ServerUnavailable, match="cannot be reached"):
                await ask
        await transport.close()


async def answered(*answers: httpx.Response, ask: str = "register") -> Any:
    """The link's reaction to these responses."""
    left = list(answers)
    transport = HttpTransport("https://dagmaster.example.com", "dm_x")
    await transport._http.aclose()
    handler = httpx.MockTransport(lambda _: left.pop(0))
    transport._http = httpx.AsyncClient(transport=handler, base_url=transport.url)
    async with transport._http, transport.open(WorkerId("17")) as link:
        return await (link.register(OFFER) if ask == "register" else link.beat(Heartbeat()))


def error(status: int, code: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"code": code, "message": "so it is", "details": []}})


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (error(500, "internal_error"), ServerUnavailable, "500: so it is"),
        (error(503, "unavailable"), ServerUnavailable, "503"),
        (httpx.Response(502, text="<html>Bad Gateway"), ServerUnavailable, "Bad Gateway"),
        (httpx.Response(429), ServerUnavailable, "Too Many Requests"),
        (httpx.Response(200, text="<html>Log in to the hotel's network"), ServerUnavailable, "hotel"),
        (error(401, "unauthorized"), Misconfigured, "--role worker"),
        (error(403, "forbidden"), Misconfigured, "--role worker"),
        (error(404, "not_found"), Misconfigured, "takes no workers over HTTP"),
        (httpx.Response(405), Misconfigured, "takes no workers over HTTP"),
        (httpx.Response(301, headers={"Location": "https://other"}), Misconfigured, "https://other"),
        (error(422, "invalid_request"), DagmasterError, "so it is"),
    ],
)
async def test_each_status_code_is_a_temporary_or_a_permanent_failure(
    answer: httpx.Response, kind: type[DagmasterError], message: str
) -> None:
    with pytest.raises(kind, match=message) as raised:
        await answered(answer)
    assert isinstance(raised.value, ServerUnavailable) is (kind is ServerUnavailable)


async def test_a_worker_unknown_to_the_server_is_lost() -> None:
    assert await answered(error(404, "unknown_worker"), ask="beat") is False
    assert await answered(error(410, "worker_gone"), ask="beat") is False


async def test_another_protocol_version_is_refused(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_workers, "PROTOCOL", 2)
    async with web(dsn) as api:
        with pytest.raises(Misconfigured, match="speaks protocol 2"):
            async with linked(api):
                pass


@pytest.mark.parametrize("url", ["dagmaster.example.com", "ftp://x", "https://", "http://[::1"])
def test_an_invalid_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(Misconfigured):
        HttpTransport(url)


async def test_a_key_without_tls_causes_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    for url in (
        "http://dagmaster.example.com",
        "http://127.0.0.1:8080",
        "http://[::1]",
        "https://dagmaster.example.com",
    ):
        await HttpTransport(url, "dm_x").close()
    await HttpTransport("http://dagmaster.example.com").close()
    assert caplog.text.count("does not use TLS") == 1


async def test_a_key_of_another_role_is_refused_with_a_hint(dsn: str) -> None:
    async with web(dsn) as api, api.real_server() as url:
        key = (await api.key("me", Role.VIEWER))["Authorization"].removeprefix("Bearer ")
        async with transport_to(url, key) as transport, transport.open(None) as link:
            with pytest.raises(Misconfigured, match="a key of role viewer may not"):
                await link.register(OFFER)


async def test_a_cancelled_claim_leaves_no_request_open(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = asyncio.Event()
    original = remote_workers.claim

    async def notifying_claim(*args: Any, **options: Any) -> Any:
        try:
            return await original(*args, **options)
        finally:
            is_over.set()

    monkeypatch.setattr(remote_workers, "claim", notifying_claim)
    async with web(dsn, single()) as api, linked(api) as link:
        waiting = asyncio.create_task(link.exchange([], 4))
        await api.fleet.until("SELECT count(*) > 0 AS ok FROM pg_stat_activity WHERE query LIKE 'LISTEN dagmaster_t%%'")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.wait_for(is_over.wait(), 60)  # The server has received it.
        await submitted(api)
        assert len(await claimed(link)) == 1


# Logs


async def test_logs_are_uploaded_in_chunks_and_once(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with web(dsn, single(), max_body_bytes=10_000) as api, linked(api) as link:
        await submitted(api)
        [message] = await claimed(link)
        logs = HttpLogs(link._transport)
        await logs.append(message.task_id, b"a" * 12_345)
        original, sent = link._transport.ask, 0

        async def broken(*args: Any, **options: Any) -> Any:
            nonlocal sent
            sent += 1
            response = await original(*args, **options)
            if sent == 2:
                raise ServerUnavailable
            return response

        monkeypatch.setattr(link._transport, "ask", broken)
        with pytest.raises(LogUnavailable):
            await logs.append(message.task_id, b"b" * 12_345)
        await logs.append(message.task_id, b"b" * 12_345)
        await logs.append(message.task_id, b"\xff\x00")
        expected = b"a" * 12_345 + b"b" * 12_345 + b"\xff\x00"
        assert await api.services.task_logs.read(message.task_id) == expected
        assert f"/jobs/{message.job_id}/nodes/work/logs" in logs.path_of(message.task_id)
        await logs.append("17_other_0", b"of nobody: dropped")
