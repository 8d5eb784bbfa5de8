"""Compiled graphs by content hash: each definition is read and compiled once."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from dagmaster.errors import NotFound
from dagmaster.model.compile import compile_graph
from dagmaster.model.graph import Graph
from dagmaster.model.workflow import Workflow
from dagmaster.store.connect import Connection
from dagmaster.store.workflows import load_definitions

KEEP = 500


class Definitions:
    def __init__(self) -> None:
        self._graphs: OrderedDict[str, Graph] = OrderedDict()

    def __contains__(self, workflow_hash: str) -> bool:
        return workflow_hash in self._graphs

    def add(self, graph: Graph) -> None:
        self._graphs[graph.workflow.content_hash] = graph
        self._graphs.move_to_end(graph.workflow.content_hash)
        while len(self._graphs) > KEEP:
            self._graphs.popitem(last=False)

    async def fetch(self, conn: Connection, hashes: Iterable[str]) -> dict[str, Graph | bytes]:
        """The definitions by hash, compiled or not: held by the caller, so that none is evicted before it is used."""
        names = set(hashes)
        known = {name: self._graphs[name] for name in names if name in self._graphs}
        missing = sorted(names - known.keys())
        return {**known, **(await load_definitions(conn, missing) if missing else {})}

    def get(self, workflow_hash: str, fetched: Mapping[str, Graph | bytes]) -> Graph:
        """Raises if the pinned definition is missing or does not compile."""
        if workflow_hash not in fetched:
            raise NotFound(f"the pinned definition {workflow_hash[:12]} is not in dag_workflows")
        definition = self._graphs.get(workflow_hash) or fetched[workflow_hash]
        graph = definition if isinstance(definition, Graph) else compile_graph(Workflow.model_validate_json(definition))
        self.add(graph)
        return graph
