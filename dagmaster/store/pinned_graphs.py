"""The pinned definitions of jobs as graphs: each is read and assembled once, and cached."""

import asyncio
from collections import OrderedDict
from typing import Any

from dagmaster.model.compile import assemble_graph
from dagmaster.model.graph import Graph
from dagmaster.model.workflow import Workflow
from dagmaster.store.connect import Connection
from dagmaster.store.workflows import load_definitions

MOST_NODES = 30_000  # of all cached graphs together: about 100 MB


class PinnedGraphs:
    """A least-recently-used cache."""

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
