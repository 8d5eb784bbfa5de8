"""Compiled graphs by content hash: each definition is read and compiled once."""

from collections import OrderedDict
from collections.abc import Iterable

from dagmaster.errors import NotFound
from dagmaster.model.compile import compile_graph
from dagmaster.model.graph import Graph
from dagmaster.model.workflow import Workflow
from dagmaster.store.connect import Connection
from dagmaster.store.jobs import load_definitions

KEEP = 500


class Definitions:
    def __init__(self) -> None:
        self._graphs: OrderedDict[str, Graph] = OrderedDict()

    def __contains__(self, workflow_hash: str) -> bool:
        return workflow_hash in self._graphs

    def add(self, graph: Graph) -> None:
        self._graphs[graph.workflow.content_hash] = graph
        while len(self._graphs) > KEEP:
            self._graphs.popitem(last=False)

    async def fetch(self, conn: Connection, hashes: Iterable[str]) -> dict[str, bytes]:
        """The definitions that are not compiled yet."""
        missing = sorted({name for name in hashes if name not in self._graphs})
        return await load_definitions(conn, missing) if missing else {}

    def get(self, workflow_hash: str, fetched: dict[str, bytes]) -> Graph:
        """Raises when the pinned definition is gone or does not compile."""
        graph = self._graphs.get(workflow_hash)
        if graph is None:
            if workflow_hash not in fetched:
                raise NotFound(f"the pinned definition {workflow_hash[:12]} is not in dag_workflows")
            graph = compile_graph(Workflow.model_validate_json(fetched[workflow_hash]))
            self.add(graph)
        else:
            self._graphs.move_to_end(workflow_hash)
        return graph
