"""Definitions of jobs are compiled once for all readers."""

import asyncio

from fleet import graph, single, task

from dagmaster.model.graph import Graph
from dagmaster.store import jobs, submission
from dagmaster.store.connect import Connection, keep_json, opened
from dagmaster.store.workflows import PinnedGraphs


async def submitted(conn: Connection, definition: Graph) -> str:
    job_id = (await submission.submit(conn, submission.NewJob(definition, {}), threshold_seconds=30)).job_id
    return str((await jobs.get_job(conn, job_id))["workflow_hash"])


async def test_concurrent_readers_get_the_same_graph(dsn: str) -> None:
    pinned, definition = PinnedGraphs(), single()
    async with opened(dsn, application="test") as conn, opened(dsn, application="test") as other:
        workflow_hash = await submitted(conn, definition)
        first, second = await asyncio.gather(pinned.find(conn, workflow_hash), pinned.find(other, workflow_hash))
        assert first is not None
        assert first is second is await pinned.find(conn, workflow_hash)
        assert first.workflow == definition.workflow
        assert first.nodes.keys() == definition.nodes.keys()


async def test_a_removed_definition_is_not_found(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        assert await PinnedGraphs().find(conn, "nope") is None


async def test_the_least_recently_used_graph_is_evicted(dsn: str) -> None:
    pinned = PinnedGraphs(most_nodes=8)
    async with opened(dsn, application="test") as conn:
        first, second = [await submitted(conn, single(workflow_id=name)) for name in ("one", "two")]
        large = await submitted(conn, graph({"a": task("echo", "b"), "b": task("echo", "END")}, "large", start="a"))
        cached, left = await pinned.find(conn, first), await pinned.find(conn, second)
        assert await pinned.find(conn, first) is cached
        await pinned.find(conn, large)
        assert await pinned.find(conn, first) is cached
        assert await pinned.find(conn, second) is not left


async def test_connections_that_do_not_decode_json_are_supported(dsn: str) -> None:
    async with opened(dsn, application="test") as conn:
        workflow_hash = await submitted(conn, single())
        keep_json(conn)
        pinned = await PinnedGraphs().find(conn, workflow_hash)
        assert pinned is not None and "work" in pinned.nodes
