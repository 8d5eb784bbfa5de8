"""W7: a chain of Python tasks that pass values on, beside W2's chain of echoes, in one process."""

from collections.abc import Sequence

from benchmarks.figures import Bar, Figure, Sample
from benchmarks.place import Place
from benchmarks.scale import Scale
from benchmarks.w2_chain import CHAINS_PER_REPETITION, time_here
from benchmarks.workflows import CHAIN_INPUTS, QUEUE, chain
from dagmaster import task, workflow
from dagmaster.authoring.implicit import QueueRules, resolve_queues
from dagmaster.fleet import fleet, worker_options
from dagmaster.handlers import load_handlers, registry
from dagmaster.model.compile import compile_graph
from dagmaster.model.graph import Graph
from dagmaster.settings import load_settings
from dagmaster.store.connect import connect


@task
async def step(message: str) -> str:
    return message


def task_chain(steps: int) -> Graph:
    def chained(message: str) -> str:
        for _ in range(steps):
            message = step(message)
        return message

    return compile_graph(resolve_queues(workflow(id=f"tasks-{steps}")(chained).workflow, QueueRules({}, QUEUE)))


async def measure(place: Place, scale: Scale) -> list[Figure]:
    load_handlers([])
    graphs = {"tasks": task_chain(scale.chain_steps), "echoes": chain(scale.chain_steps)}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    with place.database("w7") as dsn:
        settings = load_settings(database_url=dsn)
        work = worker_options(settings, [QUEUE], None)
        async with (
            fleet(dsn, settings, orchestrate=True, work=work, registry=registry) as running,
            await connect(dsn, application="bench") as conn,
        ):
            for graph in graphs.values():
                await time_here(running, conn, graph, CHAIN_INPUTS)  # warm
            for _ in range(scale.repetitions * CHAINS_PER_REPETITION):
                for name, graph in graphs.items():
                    expected = min(times[name], default=0.0)
                    times[name].append(await time_here(running, conn, graph, CHAIN_INPUTS, expected))
    return figures(times["tasks"], times["echoes"], scale.chain_steps)


def figures(tasks: Sequence[float], echoes: Sequence[float], steps: int) -> list[Figure]:
    measured, floor = Sample.of(tasks, scale=1000), Sample.of(echoes, scale=1000)
    return [
        Figure("W7", f"floor: a chain of {steps} echoes", floor.median, "ms", floor.spread),
        Figure("W7", f"a chain of {steps} @task", measured.median, "ms", measured.spread, floor.median, Bar(1.2)),
    ]
