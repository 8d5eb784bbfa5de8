"""A chain of tasks that get a table as an argument, beside the same chain without it, in one process."""

from collections.abc import Callable
from typing import Any

from benchmarks.figures import Bar, Figure, Sample
from benchmarks.place import Place
from benchmarks.scale import Scale
from benchmarks.w2_chain import CHAINS_PER_REPETITION, time_here
from benchmarks.w7_task_chain import step
from benchmarks.workflows import QUEUE
from dagmaster import DataContext, OrchContext, task, workflow
from dagmaster.authoring.implicit import QueueRules, resolve_queues
from dagmaster.data import Object
from dagmaster.fleet import fleet, worker_options
from dagmaster.handlers import load_handlers, registry
from dagmaster.model.compile import compile_graph
from dagmaster.model.graph import Graph
from dagmaster.settings import load_settings
from dagmaster.store.connect import connect


@task
async def step_with_table(message: str, table: Object) -> str:
    return message


def chained(steps: int) -> dict[str, Graph]:
    def with_table(message: str, table: dict[str, Any]) -> str:
        for _ in range(steps):
            message = step_with_table(message, table)  # type: ignore[arg-type]  # A reference to one.
        return message

    def without(message: str, table: dict[str, Any]) -> str:
        for _ in range(steps):
            message = step(message)
        return message

    return {"without": _graph("without", without), "with": _graph("with", with_table)}


async def measure(place: Place, scale: Scale, url: str) -> list[Figure]:
    load_handlers([])
    graphs = chained(scale.chain_steps)
    times: dict[str, list[float]] = {name: [] for name in graphs}
    with place.database("w12") as dsn:
        settings = load_settings(database_url=dsn)
        async with OrchContext(dsn), DataContext(url, scope="global") as context:
            table = await context.create_object_from_value({"x": list(range(10_000))})
        inputs = {"message": "m", "table": table.reference().model_dump(mode="json")}
        work = worker_options(settings, [QUEUE], None)
        async with (
            fleet(dsn, settings, orchestrate=True, work=work, registry=registry) as running,
            await connect(dsn, application="bench") as conn,
        ):
            for graph in graphs.values():
                await time_here(running, conn, graph, inputs)  # warm
            for _ in range(scale.repetitions * CHAINS_PER_REPETITION):
                for name, graph in graphs.items():
                    expected = min(times[name], default=0.0)
                    times[name].append(await time_here(running, conn, graph, inputs, expected))
    measured, floor = (Sample.of(times[name], scale=1000) for name in ("with", "without"))
    label = f"a chain of {scale.chain_steps} tasks with a table as an argument"
    return [
        Figure("W12", f"floor: a chain of {scale.chain_steps} tasks", floor.median, "ms", floor.spread),
        Figure("W12", label, measured.median, "ms", measured.spread, floor.median, Bar(1.5)),
    ]


def _graph(name: str, function: Callable[..., Any]) -> Graph:
    return compile_graph(resolve_queues(workflow(id=f"tables-{name}")(function).workflow, QueueRules({}, QUEUE)))
