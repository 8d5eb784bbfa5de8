import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, Field

from dagmaster.authoring.preparation import settle_defaults
from dagmaster.errors import Conflict, Invalid, Misconfigured
from dagmaster.handlers import Handler, HandlerContext, HandlerResult, Registry, load_handlers, registry
from dagmaster.handlers import call as call_handler
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.workflow import EndNode, StartNode, TaskNode, Workflow
from dagmaster.python.apply_items import create_task
from dagmaster.python.entrypoints import allow_modules, entry_point
from dagmaster.python.runners import handler_for
from dagmaster.python.signatures import Signature
from dagmaster.python.tasks import current_task, task


@dataclass
class Row:
    name: str
    size: int = 0


@task
def double(row: Row, times: int = 2) -> Row:
    return Row(row.name, row.size * times)


@task
async def greet(name: str) -> str:
    return f"hello {name}"


@task
def gather(first: int, *others: int, **named: str) -> list[Any]:
    return [first, others, named]


def plain(x: int) -> int:
    return x + 1


async def outcome(handler: str, /, **params: Any) -> HandlerResult:
    ctx = HandlerContext(task_id="1_n_0", job_id=1, node_id="n", handler=handler, params=params)
    return await call_handler(registry.get(handler), ctx, executor=None)


@dataclass
class Odd:
    any: object


class Named(BaseModel):
    name: str = Field(alias="Name")


@pytest.mark.parametrize(
    ("annotation", "value", "fault"),
    [
        (Row, Row("a"), None),
        (Row, {"name": "a"}, None),
        (Row, {"size": 3}, "does not return the declared Row: value.name: Field required"),
        (Named, Named(Name="a"), None),
        (
            Named,
            Row("a"),
            "does not return the declared Named: value: Input should be a valid dictionary or instance of Named",
        ),
        (list[Row] | None, None, None),
        (list[Row] | None, [Row("a"), {"size": 1}], "value.1.name: Field required"),
        (Odd, Odd(object()), None),
        (int, "no number", None),  # The task that reuses it declares it.
    ],
)
async def test_a_result_has_the_annotated_model(annotation: Any, value: Any, fault: str | None) -> None:
    def give() -> Any:
        return value

    give.__annotations__["return"] = annotation
    ctx = HandlerContext(task_id="1_n_0", job_id=1, node_id="n", handler="give", params={})
    result = await call_handler(handler_for(give, "give"), ctx, executor=None)
    assert result.success is (fault is None) and (fault or "") in (result.error_message or "")
    assert result.permanent is (fault is not None)


def test_outside_a_workflow_a_task_is_a_plain_call() -> None:
    assert double(Row("a", 2), times=4) == Row("a", 8)
    assert double.map([Row("a", 1), Row("b", 2)], times=3) == [Row("a", 3), Row("b", 6)]


async def test_an_async_task_is_awaited_outside_a_workflow() -> None:
    assert await greet("Ada") == "hello Ada"  # type: ignore[misc]
    assert await greet.fn("Ada") == "hello Ada"


async def test_a_worker_calls_the_task_according_to_its_signature() -> None:
    done = await outcome(double.handler, row={"name": "a", "size": 3})
    assert done == HandlerResult.ok({"result": Row("a", 6)})
    assert await outcome(greet.handler, name="Bo") == HandlerResult.ok({"result": "hello Bo"})


async def test_a_function_without_a_return_value_has_the_result_null() -> None:
    @task
    def silent() -> None:
        """Return nothing."""

    assert (await outcome(silent.handler)).output == {"result": None}


async def test_all_kinds_of_parameters_are_passed() -> None:
    done = await outcome(gather.handler, first=1, others=[2, 3], a="x")
    assert done.output == {"result": [1, (2, 3), {"a": "x"}]}


async def test_mismatched_arguments_fail_permanently_and_are_not_shown() -> None:
    done = await outcome(double.handler, row={"name": "a", "size": "secret"})
    assert done.permanent
    assert "row.size: Input should be a valid integer" in str(done.error_message)
    assert "secret" not in str(done.error_message)
    assert "row: Field required" in str((await outcome(double.handler)).error_message)


async def test_unknown_parameters_are_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    done = await outcome(greet.handler, name="Bo", shared="global")
    assert done.success
    assert "takes no 'shared'; ignored" in caplog.text


async def test_parameters_may_have_reserved_names() -> None:
    @task
    def odd(schema: int, _x: int, model_config: int = 3) -> int:
        return schema + _x + model_config

    assert (await outcome(odd.handler, schema=1, _x=2)).output == {"result": 6}


def test_a_task_is_named_after_its_place() -> None:
    assert double.handler == f"{__name__}:double"
    assert registry.get(f"{__name__}.double") is registry.get(double.handler)


def test_local_tasks_with_the_same_name_are_distinguished() -> None:
    def make() -> Any:
        @task
        def inner() -> None: ...

        return inner

    first, second = make(), make()
    assert second.handler == f"{first.handler}~2"


def test_an_annotation_only_for_type_checkers_does_not_affect_the_others() -> None:
    def known_in_part(when: "date", rows: "Sequence[int]", *, limit: "int | None" = None) -> "list[int]": ...  # type: ignore[name-defined]  # noqa: F821

    hints = Signature(known_in_part).hints
    assert hints == {"when": date, "rows": Any, "limit": int | None, "return": list[int]}


def test_options_create_a_variant_and_leave_the_task_unchanged() -> None:
    other = double.options(name="twice", retries=5, retry_delay=timedelta(seconds=2), timeout=30, queue="heavy")
    assert (other.chosen.name, other.chosen.queue, other.chosen.timeout_seconds) == ("twice", "heavy", 30)
    assert other.chosen.retry == RetryPolicy(max_attempts=5, initial_delay_seconds=2, max_delay_seconds=300)
    assert other.handler == double.handler
    assert double.chosen.retry is None


def test_options_keep_unnamed_values() -> None:
    patient = double.options(retries=5, retry_delay=2)
    assert patient.options(retries=1).chosen.retry == patient.options(retries=1, retry_delay=2).chosen.retry
    assert patient.options(retry_delay=7).chosen.retry == RetryPolicy(
        max_attempts=5, initial_delay_seconds=7, max_delay_seconds=300
    )
    added = create_task(patient, {"row": Row("a")}, retries=1)
    assert added.retry == patient.options(retries=1).chosen.retry


plus_one, plus_two = task(lambda x: x + 1), task(lambda x: x + 2)


def test_each_lambda_is_its_own_task() -> None:
    assert plus_one.handler != plus_two.handler


def test_a_method_cannot_be_a_task() -> None:
    class Steps:
        @staticmethod
        @task
        def fine(x: int) -> int:
            return x

    assert Steps.fine(3) == 3
    with pytest.raises(Misconfigured, match=r"Wrong\.step is a method, and workers have no object"):

        class Wrong:
            @task
            def step(self, x: int) -> int:
                return x

    with pytest.raises(Misconfigured, match="write @staticmethod above @task"):
        task(staticmethod(print))


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [({"row": 1, "time": 3}, "double\\(\\): it takes no 'time'"), ({"times": 1}, "double\\(\\): missing 'row'")],
)
def test_mismatched_arguments_are_refused_at_creation(arguments: Any, fault: str) -> None:
    with pytest.raises(TypeError, match=fault):
        create_task(double, arguments)
    assert create_task(double.handler, arguments).kwargs == arguments


def test_an_invalid_number_of_retries_is_refused() -> None:
    with pytest.raises(Invalid, match="retries=-1"):
        double.options(retries=-1)


def test_generators_and_classes_cannot_be_tasks() -> None:
    def generator() -> Iterator[int]:
        yield 1

    with pytest.raises(Misconfigured, match="is a generator; return a list"):
        task(generator)
    with pytest.raises(Misconfigured, match="@task is for functions"):
        task(Row)


def test_outside_a_worker_there_is_no_current_task() -> None:
    with pytest.raises(Conflict, match="no task is running"):
        current_task()


# Entry points.


async def test_a_plain_function_is_registered_by_naming_it() -> None:
    name = entry_point(plain)
    assert name == f"{__name__}:plain"
    assert (await outcome(name, x="4")).output == {"result": 5}
    assert entry_point(f"{__name__}.plain") == name
    assert entry_point(double) == double.handler


def test_a_lambda_cannot_be_called_by_name() -> None:
    with pytest.raises(Invalid, match="cannot be called by name"):
        entry_point(lambda: None)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    folder = tmp_path / "allowed_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("def top(): return 1\n")
    (folder / "inner.py").write_text(
        "from os import getcwd\nfrom allowed_package import top\n"
        "def work(x: int): return x\ndef _secret(): ...\ndef many(): yield 1\nclass Thing: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "allowed_package"
    for name in [name for name in sys.modules if name.startswith("allowed_package")]:
        del sys.modules[name]


def test_only_public_functions_of_allowed_modules_are_entry_points(package: str) -> None:
    known = Registry()
    allow_modules([package], known)
    assert known.names() == ["allowed_package:top"]
    allow_modules([f"{package}.*"], known)
    assert known.names() == ["allowed_package.inner:work", "allowed_package:top"]
    assert "allowed_package.inner.work" in known.queues()


def test_a_missing_module_is_an_invalid_setting() -> None:
    with pytest.raises(Misconfigured, match=r"task_modules contains 'no_such_place\.\*'"):
        allow_modules(["no_such_place.*"], Registry())


def test_loading_a_module_registers_its_tasks(tmp_path: Path) -> None:
    file = tmp_path / "tasks_of_a_file.py"
    file.write_text("from dagmaster import task\n@task(queue='heavy', timeout=9)\ndef clean(x: int) -> int: return x\n")
    known = Registry()
    load_handlers([str(file)], known)
    handler = known.get("tasks_of_a_file.clean")
    assert (handler.name, handler.queue, handler.timeout_seconds) == ("tasks_of_a_file:clean", "heavy", 9)
    assert isinstance(sys.modules["tasks_of_a_file"], ModuleType)


def test_a_tasks_retries_apply_when_yaml_names_it() -> None:
    stubborn = Handler("m:f", lambda ctx: None, retry=RetryPolicy(max_attempts=9))
    nodes = {
        "START": StartNode(next=("a", "b")),
        "a": TaskNode(handler="m.f", next=("END",)),
        "b": TaskNode(handler="m.f", retry=RetryPolicy(max_attempts=1), next=("END",)),
        "END": EndNode(),
    }
    known = Registry()
    known.register(stubborn)
    settled = settle_defaults(
        Workflow(workflow_id="w", name="w", nodes=nodes),
        known.contracts(),
        timeout_seconds=60,
        max_retries=3,
    )
    policies = [node.retry for node in settled.nodes.values() if isinstance(node, TaskNode)]
    assert [policy.max_attempts for policy in policies if policy] == [9, 1]
