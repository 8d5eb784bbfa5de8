"""Read the pinned definitions of workflows, and their newest runs."""

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from dagmaster.model.compile import assemble_graph
from dagmaster.model.graph import Graph
from dagmaster.model.workflow import Workflow
from dagmaster.store.connect import Connection, Row
from dagmaster.store.statements import fetch, fetch_one

SCAN_RUNS: Final = 5000
MOST_VERSIONS: Final = 50
MOST_NODES: Final = 30_000  # of all cached graphs together: about 100 MB


async def load_definitions(conn: Connection, hashes: Sequence[str]) -> dict[str, bytes]:
    rows = await fetch(conn, "load_definitions", {"hashes": list(hashes)})
    return {row["workflow_hash"]: row["definition"] for row in rows}


async def workflow_names(conn: Connection, hashes: Collection[str]) -> dict[str, str]:
    """The names of pinned definitions by their hashes."""
    rows = await fetch(conn, "workflow_names", {"hashes": sorted(set(hashes))})
    return {row["workflow_hash"]: row["name"] for row in rows}


async def find_newest_definition(conn: Connection, workflow_id: str) -> str | None:
    """As JSON; None if no job and no schedule ever had one."""
    row = await fetch_one(conn, "newest_definition", {"workflow_id": workflow_id})
    return row["definition"] if row else None


async def newest_versions(conn: Connection, workflow_ids: Collection[str]) -> dict[str, Row]:
    rows = await fetch(conn, "newest_versions", {"workflow_ids": list(workflow_ids)})
    return {row["workflow_id"]: row for row in rows}


async def workflow_versions(conn: Connection, workflow_id: str) -> list[Row]:
    """`runs` are counted among the newest jobs of the workflow."""
    values = {"workflow_id": workflow_id, "scan": SCAN_RUNS, "limit": MOST_VERSIONS}
    return await fetch(conn, "workflow_versions", values)


async def nodes_of_definitions(conn: Connection, hashes: Iterable[str]) -> set[str]:
    return {row["node_id"] for row in await fetch(conn, "nodes_of_definitions", {"hashes": list(hashes)})}


async def runs_by_workflow(conn: Connection, *, workflows: int, runs: int) -> dict[str, list[Row]]:
    """The newest runs of the workflows that ran last; both newest first."""
    values = {"workflow_id": None, "workflows": workflows, "runs": runs}
    by_workflow: dict[str, list[Row]] = {}
    for row in await fetch(conn, "workflow_runs", values):
        by_workflow.setdefault(row["workflow_id"], []).append(row)
    return by_workflow


async def runs_of_workflow(conn: Connection, workflow_id: str, *, runs: int) -> list[Row]:
    """The newest first."""
    return await fetch(conn, "workflow_runs", {"workflow_id": workflow_id, "workflows": 1, "runs": runs})


async def last_reload(conn: Connection) -> int:
    """The event of the last reload request; 0 if there was none today."""
    [row] = await fetch(conn, "last_reload")
    return row["event_id"] or 0


class PinnedGraphs:
    """Pinned definitions as graphs, each read and assembled once: a least-recently-used cache."""

    def __init__(self, most_nodes: int = MOST_NODES) -> None:
        self._graphs: OrderedDict[str, Graph] = OrderedDict()
        self._most_nodes, self._nodes = most_nodes, 0
        self._lock = asyncio.Lock()

    async def find(self, conn: Connection, workflow_hash: str) -> Graph | None:
        """None if the definition was removed."""
        if workflow_hash in self._graphs:
            self._graphs.move_to_end(workflow_hash)
            return self._graphs[workflow_hash]
        async with self._lock:  # A page and its requests come together; only the first loads.
            if workflow_hash in self._graphs:
                return self._graphs[workflow_hash]
            definition = (await load_definitions(conn, [workflow_hash])).get(workflow_hash)
            if definition is None:
                return None
            graph = await asyncio.to_thread(_read, definition)  # Thousands of nodes would block the event loop.
            self._keep(workflow_hash, graph)
            return graph

    def _keep(self, workflow_hash: str, graph: Graph) -> None:
        self._graphs[workflow_hash] = graph
        self._nodes += len(graph.nodes)
        while self._nodes > self._most_nodes and len(self._graphs) > 1:
            _, oldest = self._graphs.popitem(last=False)
            self._nodes -= len(oldest.nodes)


def _read(definition: bytes | dict[str, Any]) -> Graph:
    if isinstance(definition, bytes):  # Some connections do not decode JSON.
        return assemble_graph(Workflow.model_validate_json(definition))
    return assemble_graph(Workflow.model_validate(definition))
