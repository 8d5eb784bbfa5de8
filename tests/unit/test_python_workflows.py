from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from dagmaster.authoring.catalog import Catalog
from dagmaster.authoring.yaml import QueueRules, read_workflow
from dagmaster.errors import Conflict, Invalid, Misconfigured, UnknownWorkflow
from dagmaster.handlers import load_handlers, registry
from dagmaster.model.compile import compile_graph
from dagmaster.model.expressions import compile_template
from dagmaster.model.states import JobStatus
from dagmaster.model.workflow import (
    FanInNode,
    FanOutNode,
    InputFormat,
    InputSpec,
    InputType,
    TaskNode,
    Workflow,
    WorkflowNode,
)
from dagmaster.python.catalogue import find_python_workflow, join, module_in
from dagmaster.python.records import JobFailed, JobOutcome
from dagmaster.python.tasks import call, task
from dagmaster.python.workflows import defined, workflow


@task
def extract(day: str) -> list[int]:
    return [len(day)]


@task
def clean(row: Any, factor: int = 1) -> int:
    return int(row) * factor


@task
def load(rows: Any, note: str = "") -> dict[str, int]:
    return {note: len(rows)}


@workflow
def etl(day: str, factor: int = 2) -> dict[str, int]:
    """Every night."""
    rows = extract(day)
    return load(clean.map(rows, factor=factor), note="n")


def written(function: Callable[..., Any]) -> Workflow:
    """Also compiled: the workflow of a function can be run."""
    definition = workflow(function).workflow
    compile_graph(Catalog(queues=QueueRules(default_queue="q")).register(definition))
    return definition


def test_passed_values_create_edges_and_expressions() -> None:
    nodes = etl.workflow.nodes
    assert list(nodes) == ["START", "extract", "clean", "clean_all", "load", "END"]
    extracting, spreading, gathering, loading = (nodes[name] for name in list(nodes)[1:5])
    assert isinstance(extracting, TaskNode) and isinstance(loading, TaskNode)
    assert isinstance(spreading, FanOutNode) and isinstance(gathering, FanInNode)
    assert extracting.params == {"day": "{{ inputs.day }}"}
    assert spreading.source == "{{ nodes.extract.output.result }}"
    assert spreading.task.params == {"row": "{{ item }}", "factor": "{{ inputs.factor }}"}
    assert loading.params["rows"] == "{{ nodes.clean_all.output.results | map(attribute='result') | list }}"
    assert loading.depends_on and loading.depends_on.all_of == ("clean_all",)
    assert (etl.workflow.workflow_id, etl.workflow.description) == ("etl", "Every night.")


def test_the_workflow_equals_the_same_one_in_yaml() -> None:
    text = f"""
workflow_id: chained
inputs: {{n: integer}}
nodes:
  clean: {{handler: {__name__}.clean, params: {{row: "{{{{ inputs.n }}}}"}}}}
  load: {{handler: "{load.handler}", params: {{rows: ["{{{{ nodes.clean.output.result }}}}"]}}, depends_on: [clean]}}
"""
    queues = QueueRules(registry.queues(), "q")
    read, problems = read_workflow(text, queues=queues)
    assert read is not None, problems

    def chained(n: int) -> Any:
        return load([clean(n)])

    registered = Catalog(queues=queues).register(workflow(chained).workflow)
    first = registered.nodes["clean"]
    assert registered.nodes == {**read.nodes, "clean": first}
    assert isinstance(first, TaskNode) and first.handler == clean.handler, "YAML may write a dot for the colon"


def test_calls_of_the_same_task_are_numbered() -> None:
    def several() -> None:
        for number in range(3):
            clean(number)
        clean.options(name="last one")(9)

    assert list(written(several).nodes)[1:-1] == ["clean", "clean_2", "clean_3", "last_one"]


def test_parts_of_results_can_be_passed() -> None:
    def inner() -> None:
        handle = call("echo", x=1)
        clean(handle.echoed_params["a key's"][0].b)
        clean(clean.map([1, 2])[0])

    nodes = written(inner).nodes
    first, second = nodes["clean"], nodes["clean_3"]
    assert isinstance(first, TaskNode) and isinstance(second, TaskNode)
    assert first.params == {"row": "{{ nodes.echo.output.echoed_params['a key\\'s'][0].b }}"}
    scope = {"nodes": {"clean_all": {"output": {"results": [{"result": 7}]}}}}
    assert compile_template(second.params).resolve(scope) == {"row": 7}


@pytest.mark.parametrize("text", ["{{ x }}", "{% if %}", "{# a #}", "it's {{ \\ 'q' \" \n\r\t é }} }} {{", "{", "a}}"])
def test_a_string_with_braces_stays_a_string(text: str) -> None:
    def braces() -> None:
        clean({"deep": [text]})

    node = written(braces).nodes["clean"]
    assert isinstance(node, TaskNode)
    assert compile_template(node.params).resolve({}) == {"row": {"deep": [text]}}


def test_handles_are_found_in_lists_dicts_and_dataclasses() -> None:
    @dataclass
    class Pair:
        a: Any
        b: Any

    def deep() -> None:
        first, second = clean(1), clean(2)
        load({"x": [Pair(first, 3)], "y": (second,)})

    node = written(deep).nodes["load"]
    assert isinstance(node, TaskNode) and node.depends_on is not None
    assert node.params["rows"]["x"] == [{"a": "{{ nodes.clean.output.result }}", "b": 3}]
    assert node.depends_on.all_of == ("clean", "clean_2")


def test_order_can_be_declared_without_values() -> None:
    def ordered() -> None:
        a, b, c, d = clean(1), clean(2), clean(3), clean(4)
        a >> [b, c] >> d  # type: ignore[operator, unused-ignore]
        clean.options(name="late", after=[a, d])(5)
        d >> clean.options(name="all").map([1])  # type: ignore[operator, unused-ignore]

    nodes = written(ordered).nodes
    waits = {name: node.depends_on.all_of for name, node in nodes.items() if node.depends_on}
    assert waits == {
        "clean_2": ("clean",),
        "clean_3": ("clean",),
        "clean_4": ("clean_2", "clean_3"),
        "late": ("clean", "clean_4"),
        "all": ("clean_4",),
        "all_all": ("all",),
    }


def _format(x: Any) -> str:
    return f"{x}"


@pytest.mark.parametrize(
    ("misuse", "purpose"),
    [
        (bool, "be a condition"),
        (list, "be iterated over .*task.map"),
        (len, "be measured"),
        (lambda x: 1 in x, "be searched"),
        (lambda x: x == 1, "be compared"),
        (lambda x: x < 1, "be compared"),
        (_format, "be formatted into a string"),
        (str, "be formatted into a string"),
        (int, "be converted"),
        (lambda x: x + 1, "be used in a calculation"),
        (lambda x: 1 - x, "be used in a calculation"),
        (lambda x: x(), "be called"),
        (lambda x: x[1:], "be sliced"),
        (lambda x: x[clean(2)], "be indexed by <nodes.clean_2.output.result>"),
    ],
)
def test_unknown_results_cannot_be_used_as_values(misuse: Callable[[Any], Any], purpose: str) -> None:
    def wrong() -> None:
        misuse(clean(1))

    with pytest.raises(TypeError, match=f"nodes.clean.output.result.* cannot {purpose}.*Pass it to a task"):
        _ = workflow(wrong).workflow


def test_none_is_refused_where_it_would_become_the_default() -> None:
    @workflow
    def limited(limit: int | None = 100, after: str | None = None) -> int:
        return clean(limit)

    assert limited.inputs(limit=3, after=None) == {"limit": 3, "after": None}
    with pytest.raises(Invalid, match=r"limit=None of workflow 'limited' would count as not given.*100"):
        limited.inputs(None)


def test_mismatched_arguments_are_found_at_definition() -> None:
    def wrong() -> None:
        clean(rows=1)  # type: ignore[call-arg]

    with pytest.raises(TypeError, match=r"clean\(\): missing a required argument: 'row'"):
        _ = workflow(wrong).workflow


def test_a_handle_cannot_leave_its_workflow() -> None:
    handles: list[Any] = []

    def first() -> None:
        handles.append(clean(1))

    def other() -> None:
        clean(handles[0])

    assert workflow(first).workflow
    with pytest.raises(TypeError, match="belongs to workflow 'first', not to 'other'"):
        _ = workflow(other).workflow


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


def test_parameters_are_inputs() -> None:
    def typed(
        a: str,
        b: int,
        c: float | None,
        d: bool = True,
        e: list[int] = [1],  # noqa: B006 - never changed
        f: dict[str, int] | None = None,
        g: date = date(2026, 1, 2),
        h: Colour = Colour.RED,
        i: Literal["x", "y"] = "x",
        j: int | float = 1,
        k=2.5,
        m: Annotated[int, Field(ge=1, le=9)] = 5,
    ) -> None:
        clean([a, b, c, d, e, f, g, h, i, j, k, m])

    assert written(typed).inputs == {
        "a": InputSpec(type=InputType.STRING),
        "b": InputSpec(type=InputType.INTEGER),
        "c": InputSpec(type=InputType.NUMBER, required=False),
        "d": InputSpec(type=InputType.BOOLEAN, required=False, default=True),
        "e": InputSpec(type=InputType.ARRAY, required=False, default=[1]),
        "f": InputSpec(type=InputType.OBJECT, required=False),
        "g": InputSpec(type=InputType.STRING, required=False, default="2026-01-02", format=InputFormat.DATE),
        "h": InputSpec(type=InputType.STRING, required=False, default="red", enum=("red", "blue")),
        "i": InputSpec(type=InputType.STRING, required=False, default="x", enum=("x", "y")),
        "j": InputSpec(type=InputType.NUMBER, required=False, default=1),
        "k": InputSpec(type=InputType.NUMBER, required=False, default=2.5),
        "m": InputSpec(type=InputType.INTEGER, required=False, default=5, minimum=1, maximum=9),
    }


def test_a_parameter_without_a_type_is_refused() -> None:
    def untyped(x) -> None:
        clean(x)

    with pytest.raises(Misconfigured, match=r"parameter 'x' .* needs a type that an input can have; annotate it"):
        _ = workflow(untyped).workflow


def test_an_empty_workflow_is_refused() -> None:
    def empty() -> None: ...

    with pytest.raises(Invalid, match=r"empty\(\) calls no task"):
        _ = workflow(empty).workflow


def test_async_functions_and_calls_outside_are_refused() -> None:
    async def waits() -> None: ...

    with pytest.raises(Misconfigured, match="def, not async def"):
        workflow(waits)
    with pytest.raises(TypeError, match=r"call etl.run\(...\)"):
        etl("monday")
    with pytest.raises(Conflict, match="only in a workflow function"):
        call("echo")


def test_a_nested_workflow_is_its_own_job() -> None:
    def outer() -> None:
        counts = etl("monday", factor=3)
        clean(counts["n"])

    nodes = workflow(outer).workflow.nodes
    inner, after = nodes["etl"], nodes["clean"]
    assert isinstance(inner, WorkflowNode) and isinstance(after, TaskNode)
    assert (inner.workflow, inner.inputs) == ("etl", {"day": "monday", "factor": 3})
    assert after.params == {"row": "{{ nodes.etl.output.result['load'].result['n'] }}"}


def test_call_cycles_are_refused() -> None:
    @workflow
    def ping() -> None:
        pong()

    @workflow
    def pong() -> None:
        ping()

    with pytest.raises(Invalid, match="in a cycle: ping calls itself"):
        _ = ping.workflow


def test_finalizers_receive_the_jobs_status() -> None:
    @task
    def notify(error: str | None, status: str) -> None: ...

    @task
    def sweep(where: str = "here") -> None: ...

    compiled = workflow(on_failure=notify, finally_=[sweep])(single()).workflow
    assert (compiled.on_failure, compiled.finally_) == (("notify",), ("sweep",))
    node = compiled.nodes["notify"]
    assert isinstance(node, TaskNode)
    assert node.params == {"error": "{{ job.error }}", "status": "{{ job.status }}"}
    compile_graph(Catalog(queues=QueueRules(default_queue="q")).register(compiled))


def single() -> Callable[[], None]:
    """A nested function, which is in no catalogue."""

    def clean_once() -> None:
        clean(1)

    return clean_once


def test_a_schedule_equals_that_of_a_file() -> None:
    nightly = workflow(schedule="0 6 * * *", timezone="Europe/Berlin", catchup="all")(single()).workflow
    assert nightly.schedule is not None
    assert (nightly.schedule.cron, nightly.schedule.timezone) == ("0 6 * * *", "Europe/Berlin")
    often = workflow(schedule=timedelta(minutes=15))(single()).workflow
    assert often.schedule is not None and often.schedule.every_seconds == 900
    with pytest.raises(Misconfigured, match="timezone needs a schedule"):
        workflow(timezone="UTC")(single())
    with pytest.raises(Invalid, match="workflow 'clean_once': schedule"):
        _ = workflow(schedule="never")(single()).workflow


def test_the_result_is_the_functions_return_value() -> None:
    def pair() -> tuple[int, dict[str, int]]:
        first = clean(1)
        return first, {"two": clean(2)}

    flow = workflow(pair)
    outputs = {"clean": {"result": 1}, "clean_2": {"result": 2}}
    assert flow.result_of(JobOutcome(1, JobStatus.COMPLETED, result=outputs)) == (1, {"two": 2})
    with pytest.raises(JobFailed, match="job 5 failed: it broke") as failed:
        flow.result_of(JobOutcome(5, JobStatus.FAILED, "it broke"))
    assert (failed.value.job_id, failed.value.status) == (5, JobStatus.FAILED)


# The catalogue.


def test_workflows_of_loaded_modules_are_in_the_catalogue() -> None:
    load_handlers([])
    catalog = Catalog(queues=QueueRules(registry.queues(), "q"))
    assert join(catalog, __name__) == []
    assert catalog.get("etl").nodes.keys() == etl.workflow.nodes.keys()


def test_an_invalid_workflow_does_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        call("no_such_handler")

    def worse() -> None:
        bool(clean(1))

    for name, function in (("broken", broken), ("worse", worse)):
        monkeypatch.setitem(defined, name, workflow(function))
    catalog = Catalog(queues=QueueRules(registry.queues(), "q"))
    problems = join(catalog, __name__)
    assert ["no_such_handler" in problems[0].message, "be a condition" in problems[1].message] == [True, True]
    assert problems[0].file == __file__ and problems[0].line
    assert "etl" in catalog.workflows


def test_duplicate_ids_are_refused() -> None:
    with pytest.raises(Misconfigured, match=r"two workflows are named 'etl': .*; give one of them another id"):
        workflow(id="etl")(written)


@pytest.mark.parametrize(
    ("name", "module"),
    [("a.py", "a.py"), ("x/a.py:f", "x/a.py"), ("p.m:f", "p.m"), ("etl", None), ("a.yaml", None), ("x/a.yaml", None)],
)
def test_a_python_place_is_distinguished_from_other_names(name: str, module: str | None) -> None:
    assert module_in(name) == module


def test_a_workflow_is_found_by_its_place() -> None:
    assert find_python_workflow(f"{__file__}:etl") is etl
    assert find_python_workflow(__file__) is etl, "it is the only one"
    with pytest.raises(UnknownWorkflow, match=f"it defines {__name__}:etl"):
        find_python_workflow(f"{__name__}:nightly")
    with pytest.raises(UnknownWorkflow, match="defines no workflow; is @workflow missing"):
        find_python_workflow("other.py")
