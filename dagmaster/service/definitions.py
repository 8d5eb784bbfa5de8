"""The workflows and handler contracts for submissions."""

from collections.abc import Sequence

from dagmaster.authoring.preparation import Find, prepare
from dagmaster.model.contracts import Contracts
from dagmaster.model.graph import Graph
from dagmaster.model.params import find_param_problems
from dagmaster.model.problems import Problem
from dagmaster.model.workflow import Workflow
from dagmaster.settings import Settings

KEEP_GRAPHS = 500


class Definitions:
    """`find` returns a workflow by name, `find_called` its child workflows; both raise UnknownWorkflow."""

    def __init__(self, settings: Settings, contracts: Contracts, find: Find, find_called: Find | None = None) -> None:
        self.find, self._find_called = find, find_called or find
        self._settings, self.contracts = settings, contracts
        self._graphs: dict[str, Graph] = {}
        self._refused: dict[str, Sequence[Problem]] = {}

    def learn(self, contracts: Contracts) -> None:
        """Use the contracts that workers have registered since."""
        self.contracts = contracts
        self.forget_graphs()
        self._refused.clear()

    def forget_graphs(self) -> None:
        self._graphs.clear()

    def graph_of(self, workflow: Workflow) -> Graph:
        """The graph, ready to run; compiled once, unless it has child workflows, which may have changed."""
        graph = self._graphs.get(workflow.content_hash)
        if graph is None:
            graph = prepare(workflow, self._settings, self.contracts, self._find_called)
            if len(self._graphs) >= KEEP_GRAPHS:
                self._graphs.clear()
            if not graph.called:
                self._graphs[workflow.content_hash] = graph
        return graph

    def refused_params(self, workflow: Workflow) -> Sequence[Problem]:
        """The parameters that workers with the known contracts would reject; computed once."""
        refused = self._refused.get(workflow.content_hash)
        if refused is None:
            if len(self._refused) >= KEEP_GRAPHS:
                self._refused.clear()
            refused = self._refused[workflow.content_hash] = list(find_param_problems(workflow, self.contracts))
        return refused
