"""Which workflows of a catalogue are started by themselves."""

import logging
from dataclasses import dataclass

from dagmaster.authoring.catalog import Catalog
from dagmaster.authoring.preparation import prepare
from dagmaster.errors import Conflict, DagmasterError
from dagmaster.model.contracts import Contracts
from dagmaster.model.graph import Graph
from dagmaster.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Scheduled:
    """`ended` are workflows of the catalogue that are not started by themselves, or not any more.

    `unready` are those of which nothing new can be said: their schedules stay as they are.
    """

    graphs: tuple[Graph, ...]
    ended: tuple[str, ...]
    unready: tuple[str, ...] = ()


def find_scheduled(catalog: Catalog, settings: Settings, known: Contracts) -> Scheduled:
    """What cannot be prepared is left as it is; the others must go on."""
    graphs: list[Graph] = []
    ended: list[str] = []
    unready: list[str] = []
    for name, workflow in sorted(catalog.workflows.items()):
        if workflow.schedule is None or not workflow.is_active:
            ended.append(name)
            continue
        try:
            graphs.append(prepare(workflow, settings, known, catalog.get))
        except DagmasterError as error:
            log.warning("the schedule of workflow %s is not taken in: %s", name, error)
            unready.append(name)
    return Scheduled(tuple(graphs), tuple(ended), tuple(unready))


def check_prunable(catalog: Catalog) -> None:
    """Raise Conflict where a file cannot be read: nobody knows whose schedule would be removed by mistake."""
    broken = sorted(file for file, found in catalog.problems.items() if any(problem.is_error for problem in found))
    if broken:
        raise Conflict(
            f"nothing is pruned while a workflow cannot be read, because its schedule would go with the others; mend "
            f"or remove {', '.join(broken)}"
        )
