import asyncio
import json
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

import httpx
import psycopg
import pytest
from fleet import chain, fan, rows, single
from httpx_sse import aconnect_sse
from test_web_reading import ran
from web import Web, web
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from dagmaster.model.access import Role
from dagmaster.web import streams
from dagmaster.web.api import streams as api_streams
from dagmaster.web.api.streams import DIGEST_SECONDS


async def listen(
    url: str, job_id: str, query: str = "", *, opened: asyncio.Event | None = None, **headers: str
) -> list[dict[str, Any]]:
    """Read the stream to its end."""
    entries = []
    async with (
        httpx.AsyncClient(timeout=90) as client,
        aconnect_sse(client, "GET", f"{url}/api/v1/jobs/{job_id}/stream{query}", headers=headers) as source,
    ):
        if opened is not None:
            opened.set()
        async for event in source.aiter_sse():
            entry = json.loads(event.data)
            assert (event.id, event.event) == (entry["event_id"], entry["event_type"])
            entries.append(entry)
    return entries


async def timeline(api: Web, job_id: str) -> list[dict[str, Any]]:
    return list((await api.get(f"/api/v1/jobs/{job_id}/timeline?limit=1000"))["events"])


async def watch(url: str, path: str, *, first: Any = None, **options: Any) -> tuple[list[dict[str, Any]], int]:
    """The messages, and the close code of the server."""
    entries = []
    async with connect(url.replace("http", "ws") + path, **options) as socket:
        if first is not None:
            await socket.send(json.dumps(first))
        try:
            while True:
                entries.append(json.loads(await asyncio.wait_for(socket.recv(), 60)))
        except ConnectionClosed as closed:
            assert closed.rcvd is not None
            return entries, closed.rcvd.code


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - what is waited for belongs to the application
            await asyncio.sleep(0.01)


async def test_a_jobs_stream_equals_its_timeline(dsn: str) -> None:
    async with web(dsn, fan(), runs=True) as api, api.real_server() as url:
        submitted = await api.post(
            "/api/v1/jobs", {"workflow_id": "fan", "input_params": {"items": list(range(40))}}, 201
        )
        live = await listen(url, submitted["job_id"])
        assert live == await timeline(api, submitted["job_id"])
        assert live[-1]["event_type"] == "job_completed"


async def test_a_stream_can_resume_in_the_middle(dsn: str) -> None:
    async with web(dsn, chain(4), runs=True) as api, api.real_server() as url:
        job_id = await ran(api, "chain")
        events = await timeline(api, job_id)
        middle = events[5]["event_id"]
        assert await listen(url, job_id, f"?after={middle}") == events[6:]
        assert await listen(url, job_id, **{"Last-Event-ID": middle}) == events[6:]
        assert await listen(url, job_id, f"?after={events[-1]['event_id']}") == []
        await api.get(f"/api/v1/jobs/{job_id}/stream", 422, headers={"Last-Event-ID": "x"})


async def test_long_histories_are_streamed_completely_in_pages(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PAGE", 7)
    monkeypatch.setattr(streams, "MAX_SEEN", 20)
    async with web(dsn, chain(20), runs=True) as api, api.real_server() as url:
        job_id = await ran(api, "chain")
        assert await listen(url, job_id) == await timeline(api, job_id)


async def test_a_late_commit_is_neither_missed_nor_duplicated(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer got its id earlier than another, but commits later."""
    monkeypatch.setattr(streams, "WINDOW_SECONDS", 60.0)  # All events after the first id below are late.
    async with web(dsn, single()) as api, api.real_server() as url:
        await api.fleet.orchestrator()
        submitted = await api.post("/api/v1/jobs", {"workflow_id": "single"}, 201)
        job_id = submitted["job_id"]
        listening = asyncio.create_task(listen(url, job_id))
        add = """INSERT INTO dagapp.dag_job_events (job_id, event_id, event_type, event_status, created_at, source_app)
                 OVERRIDING SYSTEM VALUE VALUES (%s, %s, 'job_warning', 'info', clock_timestamp(), 'test')"""
        await api.fleet.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting")

        def has_seen(event_id: int) -> bool:
            return any(event_id in watcher._seen for watcher in api.app.state.streams._watchers)

        for event_id in (1_000_002, 1_000_001):
            await rows(dsn, add, int(job_id), event_id)
            await until(partial(has_seen, event_id))
        await api.post("/api/v1/callbacks/task-result", {"task_id": f"{job_id}_work_0", "status": "completed"}, 202)
        ids = [entry["event_id"] for entry in await listening]
        assert sorted(ids) == sorted({entry["event_id"] for entry in await timeline(api, job_id)})
        assert "1000001" in ids


async def test_streams_continue_after_a_database_outage(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "RETRY_SECONDS", 0.05)
    async with web(dsn, single()) as api, api.real_server() as url:
        await api.fleet.orchestrator()
        submitted = await api.post("/api/v1/jobs", {"workflow_id": "single"}, 201)
        opened = asyncio.Event()  # Before that, the response is that the database is unavailable.
        listening = asyncio.create_task(listen(url, submitted["job_id"], opened=opened))
        await opened.wait()
        await api.fleet.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_waiting")
        kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dagmaster api'"
        for _ in range(3):
            await rows(dsn, kill)
            await asyncio.sleep(0.1)
        await rows(
            dsn,
            """INSERT INTO dagapp.dag_task_results (task_id, job_id, node_id, status)
               VALUES (%s, %s, 'work', 'completed')""",
            f"{submitted['job_id']}_work_0",
            int(submitted["job_id"]),
        )
        entries = await listening
        assert entries == await timeline(api, submitted["job_id"])


async def test_a_stream_ends_promptly_when_the_server_stops(dsn: str) -> None:
    async with web(dsn, single()) as api:
        submitted = await api.post("/api/v1/jobs", {"workflow_id": "single"}, 201)
        async with api.real_server() as url:
            listening = asyncio.create_task(listen(url, submitted["job_id"]))
            await until(lambda: bool(api.app.state.streams._watchers))
        entries = await asyncio.wait_for(listening, 40)
        assert [entry["event_type"] for entry in entries] in ([], ["job_created"])


async def test_a_websocket_distinguishes_the_servers_stop_from_the_jobs_end(dsn: str) -> None:
    async with web(dsn, single()) as api, api.real_server() as url:
        submitted = await api.post("/api/v1/jobs", {"workflow_id": "single"}, 201)
        watching = asyncio.create_task(watch(url, f"/ws/jobs/{submitted['job_id']}"))
        await until(lambda: bool(api.app.state.streams._watchers))
        api.app.state.is_stopping = True
        assert (await watching)[1] == 1012


async def test_a_slow_reader_is_dropped_with_a_message(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PAGE", 2)
    monkeypatch.setattr(streams, "QUEUE_SIZE", 2)
    monkeypatch.setattr(streams, "SLOW_SECONDS", 0.0)
    async with web(dsn, chain(3), runs=True) as api:
        job_id = await ran(api, "chain")
        [row] = await rows(dsn, "SELECT * FROM dagapp.dag_jobs")
        events = api.app.state.streams.events(int(job_id), 0, row["created_at"], heartbeat_seconds=9)
        await anext(events)
        with pytest.raises(Exception, match="not read fast enough"):
            while True:
                await asyncio.sleep(2 * streams.POLL_SECONDS)
                await anext(events)


async def test_a_websocket_sends_the_same_events_and_closes_at_the_end(dsn: str) -> None:
    async with web(dsn, chain(3), runs=True) as api, api.real_server() as url:
        submitted = await api.post("/api/v1/jobs", {"workflow_id": "chain"}, 201)
        live, code = await watch(url, f"/ws/jobs/{submitted['job_id']}")
        events = await timeline(api, submitted["job_id"])
        assert (live, code) == (events, 1000)
        later, _ = await watch(url, f"/ws/jobs/{submitted['job_id']}?after={events[2]['event_id']}")
        assert later == events[3:]


async def test_a_websocket_requires_a_key_that_may_see_the_job(dsn: str) -> None:
    async with web(dsn, single(), runs=True) as api, api.real_server() as url:
        job_id = await ran(api, "single")
        path = f"/ws/jobs/{job_id}"
        viewer, worker = await api.key("viewer", Role.VIEWER), await api.key("worker", Role.WORKER)
        partner = await api.key("partner", Role.PARTNER)
        text = viewer["Authorization"].removeprefix("Bearer ")
        events = await timeline_with(api, job_id, viewer)
        assert await watch(url, path, first={"key": text}) == (events, 1000)
        assert await watch(url, path, additional_headers=viewer) == (events, 1000)
        assert await watch(url, path, first={"key": "dm_wrong"}) == ([], 4401)
        assert await watch(url, path, first=["nothing"]) == ([], 4401)
        assert await watch(url, f"{path}?key={text}") == ([], 4401)
        assert await watch(url, path, additional_headers=worker) == ([], 4403)
        assert await watch(url, path, additional_headers={"Authorization": "Bearer dmt_forged"}) == ([], 4403)
        assert await watch(url, path, additional_headers=partner) == ([], 4404)
        assert await watch(url, "/ws/jobs/17", additional_headers=viewer) == ([], 4404)


async def test_an_event_id_of_thousands_of_digits_is_invalid(dsn: str) -> None:
    async with web(dsn, single()) as api, api.real_server() as url:
        submitted = await api.post("/api/v1/jobs", {"workflow_id": "single"}, 201)
        headers = {"Last-Event-ID": "9" * 5000}
        await api.get(f"/api/v1/jobs/{submitted['job_id']}/stream", 422, headers=headers)
        assert await watch(url, f"/ws/jobs/{submitted['job_id']}?after={'9' * 5000}") == ([], 4422)


async def test_a_websocket_is_asked_to_try_again_during_a_database_outage(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise psycopg.OperationalError("the connection was lost")

    monkeypatch.setattr(api_streams, "get_job_head", fail)
    async with web(dsn) as api, api.real_server() as url:
        assert await watch(url, "/ws/jobs/17") == ([], 1013)


async def test_streams_end_when_their_key_is_revoked(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagmaster.web.access.TRUST_SECONDS", 0.1)
    monkeypatch.setattr(api_streams, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(api_streams, "HEARTBEAT_SECONDS", 0.2)
    async with web(dsn, single()) as api, api.real_server() as url:
        admin, viewer = await api.key("admin"), await api.key("viewer", Role.VIEWER)
        submitted = await api.post("/api/v1/jobs", {"workflow_id": "single"}, 201, headers=admin)
        path = f"/api/v1/jobs/{submitted['job_id']}/stream"
        watching = asyncio.create_task(watch(url, f"/ws/jobs/{submitted['job_id']}", additional_headers=viewer))
        async with httpx.AsyncClient(timeout=90) as client, client.stream("GET", url + path, headers=viewer) as answer:
            await until(lambda: len(api.app.state.streams._watchers) == 2)
            await rows(dsn, "UPDATE dagapp.dag_api_keys SET revoked_at = now() WHERE name = 'viewer' RETURNING 1")
            assert "event: dropped" in (await answer.aread()).decode()
        assert (await watching)[1] == 4401


async def timeline_with(api: Web, job_id: str, key: dict[str, str]) -> list[dict[str, Any]]:
    return list((await api.get(f"/api/v1/jobs/{job_id}/timeline?limit=1000", headers=key))["events"])


async def test_digests_limit_the_number_of_messages(dsn: str) -> None:
    async with web(dsn, fan("collect"), runs=True) as api, api.real_server() as url:
        items = {"items": list(range(60))}
        submitted = await api.post("/api/v1/jobs", {"workflow_id": "fan", "input_params": items}, 201)
        began = monotonic()
        digests, code = await watch(url, f"/ws/jobs/{submitted['job_id']}?digest=1")
        took = monotonic() - began
        events = await timeline(api, submitted["job_id"])
    assert code == 1000
    assert len(events) > 200
    assert sum(digest["events"] for digest in digests) == len(events)
    assert len(digests) <= 2 + took / DIGEST_SECONDS
    assert digests[-1]["event_id"] == events[-1]["event_id"]
    last_events = {entry["node_id"]: entry["event_type"] for digest in digests for entry in digest["nodes"]}
    assert last_events["spread"] == "node_completed"
    assert not [name for name in last_events if "__" in name]
