import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from fleet import retry, rows, single
from job_owner import Owner, owner
from web import Web, web

from dagmaster import AsyncClient
from dagmaster.engine.messages import Load, TaskCompleted, TaskFailed, TaskStarted
from dagmaster.errors import NotFound, Unavailable
from dagmaster.model.access import Role
from dagmaster.settings import load_settings
from dagmaster.tasklogs import TaskLogs, open_task_logs


@dataclass
class Stage:
    """A job with one node, `work`, whose attempts start and end on request."""

    api: Web
    owner: Owner
    logs: TaskLogs
    attempt: int = 0

    @property
    def path(self) -> str:
        return f"/api/v1/jobs/{self.owner.job_id}/nodes/work"

    @property
    def task_id(self) -> str:
        return f"{self.owner.job_id}_work_{self.attempt}"

    async def start(self) -> None:
        await self.owner.advance(TaskStarted("work", self.task_id, "w", datetime.now(UTC)))

    async def write(self, text: str) -> None:
        await self.logs.append(self.task_id, text.encode())

    async def fail(self) -> None:
        details = {"log_path": self.logs.path_of(self.task_id), "peak_memory_bytes": 7, "cpu_seconds": 0.5}
        failed = TaskFailed(
            "work",
            self.task_id,
            "w",
            datetime.now(UTC),
            "no luck",
            error_types=("ValueError", "Exception"),
            details=details,
        )
        await self.owner.advance(failed)
        self.attempt += 1

    async def complete(self) -> None:
        await self.owner.advance(TaskCompleted("work", self.task_id, "w", datetime.now(UTC), b"{}"))


@asynccontextmanager
async def stage(dsn: str, **settings: Any) -> AsyncIterator[Stage]:
    async with web(dsn, **settings) as api, owner(dsn) as job_owner:
        await job_owner.submit(single(retry=retry(3)), submitted_by="ours")
        await job_owner.advance(Load())
        yield Stage(api, job_owner, open_task_logs(load_settings()))


async def test_a_log_is_read_whole_from_an_offset_and_from_its_end(dsn: str) -> None:
    async with stage(dsn) as on:
        await on.start()
        await on.write("eins\nzwei\ndrei: ä\n")
        answer = await on.api.client.get(f"{on.path}/logs")
        assert (answer.status_code, answer.text) == (200, "eins\nzwei\ndrei: ä\n")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert (answer.headers["x-log-size"], answer.headers["x-attempt"]) == ("19", "1")
        assert await on.api.get(f"{on.path}/logs?offset=5") == "zwei\ndrei: ä\n"
        assert await on.api.get(f"{on.path}/logs?tail=1") == "drei: ä\n"
        assert await on.api.get(f"{on.path}/logs?offset=1000") == ""
        assert "not both" in (await on.api.get(f"{on.path}/logs?tail=1&offset=1", status=422))["error"]["message"]


async def test_a_search_covers_the_whole_log_and_returns_line_numbers(dsn: str) -> None:
    async with stage(dsn) as on:
        await on.start()
        await on.write("Needle one\n" + "hay ä\n" * 200_000 + "the last needle")
        matches = await on.api.get(f"{on.path}/logs/search?text=NEEDLE")
        assert [(line["number"], line["text"]) for line in matches["lines"]] == [
            (1, "Needle one"),
            (200_002, "the last needle"),
        ]
        assert (matches["total"], matches["log_lines"], matches["attempt"]) == (2, 200_002, 1)
        some = await on.api.get(f"{on.path}/logs/search?text=%C3%A4&limit=3")
        assert (len(some["lines"]), some["total"]) == (3, 200_000)
        assert (await on.api.get(f"{on.path}/logs/search?text=nowhere"))["total"] == 0
        await on.api.get(f"{on.path}/logs/search?text=x&attempt=7", status=404)


async def test_each_attempt_has_its_own_log_and_the_newest_is_shown(dsn: str) -> None:
    async with stage(dsn) as on:
        await on.start()
        await on.write("first")
        await on.fail()
        assert await on.api.get(f"{on.path}/logs") == "first"
        await on.start()
        await on.write("second")
        assert await on.api.get(f"{on.path}/logs") == "second"
        assert await on.api.get(f"{on.path}/logs?attempt=1") == "first"
        [attempt] = (await on.api.get(f"{on.path}/attempts"))["items"]
        assert (attempt["attempt"], attempt["log_bytes"], attempt["error_message"]) == (1, 5, "no luck")
        [attempt] = (await on.api.get(on.path))["attempts"]
        recorded = (attempt["log_path"], attempt["cpu_seconds"], attempt["peak_memory_bytes"], attempt["error_type"])
        assert recorded == (on.logs.path_of(attempt["task_id"]), 0.5, 7, "ValueError")


async def test_a_missing_log_is_explained(dsn: str) -> None:
    async with stage(dsn) as on:

        async def reason(query: str = "", node: str = "work") -> str:
            path = on.path.replace("work", node)
            message: str = (await on.api.get(f"{path}/logs{query}", status=404))["error"]["message"]
            return message

        assert await reason() == "attempt 1 of node 'work' has not started"
        assert await reason(node="none") == f"job {on.owner.job_id} has no node 'none'"
        assert await on.api.get(f"{on.path.replace('work', 'none')}/attempts", status=404)
        await on.start()
        assert await reason() == "attempt 1 of node 'work' has written nothing yet"
        assert await reason("?attempt=2") == "attempt 2 of node 'work' has not started"
        await on.complete()
        assert await reason() == "attempt 1 of node 'work' has written nothing"
        assert await reason("?follow=true") == "attempt 1 of node 'work' has written nothing"
        assert await reason("?attempt=2") == "node 'work' has ended with attempt 1"
        await rows(dsn, "UPDATE dagapp.dag_task_results SET log_path = '/there/x.log'")
        assert "is /there/x.log; it cannot be read from here" in await reason()


async def test_a_log_can_be_followed_across_retries(dsn: str) -> None:
    async with stage(dsn) as on, on.api.real_server() as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        pieces: asyncio.Queue[str] = asyncio.Queue()

        async def follow(query: str) -> None:
            async with client.stream("GET", f"{on.path}/logs?follow=true{query}") as answer:
                assert answer.status_code == 200
                async for piece in answer.aiter_text():
                    pieces.put_nowait(piece)

        following = asyncio.create_task(follow(""))
        await on.start()
        await on.write("one ")
        assert await pieces.get() == "one "
        await on.write("more ")
        assert await pieces.get() == "more "
        await on.fail()
        await on.start()
        await on.write("two ")
        assert await pieces.get() == "two "
        assert not following.done()
        await on.write("the end")
        await on.complete()
        await following
        assert pieces.get_nowait() == "the end"
        await follow("&attempt=1")
        assert (pieces.get_nowait(), pieces.empty()) == ("one more ", True)


async def test_a_follower_does_not_keep_the_server_from_stopping(dsn: str) -> None:
    async with stage(dsn) as on, httpx.AsyncClient(timeout=60) as client:
        await on.start()
        await on.write("one")
        async with on.api.real_server() as url, client.stream("GET", f"{url}{on.path}/logs?follow=true") as answer:
            pieces = answer.aiter_text()
            assert await anext(pieces) == "one"
            on.api.app.state.is_stopping = True
            assert [piece async for piece in pieces] == []


async def test_nodes_that_may_have_a_log_are_listed(dsn: str) -> None:
    async with stage(dsn) as on:
        path = on.path.removesuffix("/nodes/work")
        assert (await on.api.get(f"{path}/logs"))["items"] == []
        await on.start()
        await on.fail()
        [node] = (await on.api.get(f"{path}/logs"))["items"]
        assert (node["node_id"], node["attempt"]) == ("work", 2)


async def test_the_client_reads_and_follows_logs(dsn: str) -> None:
    async with stage(dsn) as on, on.api.real_server() as url, AsyncClient(url) as client:
        job_id = on.owner.job_id
        with pytest.raises(NotFound, match="has not started"):
            await anext(client.logs(job_id, "work"))
        await on.start()
        await on.write("eins\nzwei: ä\n")
        following = client.logs(job_id, "work", tail=1, follow=True)
        assert await anext(following) == "zwei: ä\n"
        await on.write("drei\n")
        assert await anext(following) == "drei\n"
        await on.complete()
        assert [piece async for piece in following] == []
        assert "".join([piece async for piece in client.logs(job_id, "work")]) == "eins\nzwei: ä\ndrei\n"
        assert [node.node_id for node in (await client.logged(job_id)).items] == ["work"]


async def test_following_logs_of_an_unreachable_server_is_an_error() -> None:
    async with AsyncClient("http://127.0.0.1:9") as client:
        with pytest.raises(Unavailable, match="cannot be reached"):
            await anext(client.logs(1, "work", follow=True))


async def test_a_partner_sees_the_logs_of_its_own_jobs_only(dsn: str) -> None:
    async with stage(dsn) as on:
        await on.start()
        await on.write("ours")
        ours, theirs = [await on.api.key(name, Role.PARTNER) for name in ("ours", "theirs")]
        assert await on.api.get(f"{on.path}/logs", headers=ours) == "ours"
        assert await on.api.get(f"{on.path}/logs", status=404, headers=theirs)


@pytest.mark.parametrize("log_url", ["foo://bar"])
async def test_an_invalid_storage_url_is_reported(dsn: str, log_url: str) -> None:
    async with stage(dsn, log_url=log_url) as on:
        refusal = await on.api.get(f"{on.path}/logs", status=503)
        assert "DAGMASTER_LOG_URL" in refusal["error"]["message"]
