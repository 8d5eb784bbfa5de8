"""`@workflow`: a function that is called once to build a graph, which then runs like one from YAML."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, Generic, ParamSpec, TypeVar, overload

from pydantic import ValidationError

from dagmaster import python
from dagmaster.authoring.implicit import add_ends
from dagmaster.errors import Invalid, Misconfigured
from dagmaster.model.expressions import returned_value
from dagmaster.model.workflow import Workflow, WorkflowNode
from dagmaster.python.handles import Draft, Handle, drafting, find_draft, seen_from_outside
from dagmaster.python.inputs import inputs_of
from dagmaster.python.options import schedule_of
from dagmaster.python.records import JobOutcome
from dagmaster.python.signatures import EMPTY, Signature, module_of
from dagmaster.python.tasks import LOCAL, AnyTask, TaskFunction
from dagmaster.python.values import decode, encode

P = ParamSpec("P")
R = TypeVar("R")

# What finalizers receive about their job.
FACTS = ("error", "failed_node", "status")


@dataclass(frozen=True, slots=True)
class Written:
    """`returned` is the function's return value: handles, perhaps in lists and dicts.

    `called` are the workflows that it calls, directly and indirectly.
    """

    workflow: Workflow
    called: Mapping[str, Workflow]
    returned: Any


class WorkflowFunction(Generic[P, R]):
    """The graph is built on first use: the tasks that the function calls may be defined below it."""

    def __init__(self, fn: Callable[P, R], head: Mapping[str, Any], last: Mapping[str, Sequence[AnyTask]]) -> None:
        self.fn = fn
        self.signature = Signature(fn)
        self.workflow_id: str = head["workflow_id"]
        self._head, self._last = head, last
        self.__name__ = fn.__name__
        self._is_being_written = False
        for name in ("__module__", "__qualname__", "__doc__"):
            setattr(self, name, getattr(fn, name, None))

    def __repr__(self) -> str:
        return f"<workflow {self.workflow_id}>"

    @property
    def workflow(self) -> Workflow:
        """The definition, as if read from a file."""
        return self.written.workflow

    @cached_property
    def written(self) -> Written:
        self._is_being_written = True
        try:
            return self._write()
        finally:
            self._is_being_written = False

    def _write(self) -> Written:
        draft = Draft(self.workflow_id)
        inputs = inputs_of(self.signature)
        write: Callable[..., Any] = self.fn
        with drafting(draft):
            returned = write(**{name: Handle(draft, f"inputs.{name}") for name in inputs})
            last = {key: [_called_last(draft, task) for task in tasks] for key, tasks in self._last.items()}
        if not draft.planned:
            raise Invalid(f"the workflow function {self.__name__}() calls no task; a workflow needs at least one")
        try:
            nodes = add_ends(draft.nodes(), [head for heads in last.values() for head in heads])
            result = draft.encode(returned)[0]
            workflow = Workflow(**self._head, **last, inputs=inputs, nodes=nodes, returns=result)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            place = ".".join(map(str, fault["loc"]))
            raise Invalid(f"workflow {self.workflow_id!r}: {place}: {fault['msg']}") from error
        return Written(workflow, draft.called, returned)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """In another workflow function: add a node for a child job; returns handles of its result."""
        draft = find_draft()
        if draft is None:
            raise TypeError(f"call {self.__name__}.run(...) to run the workflow here, or .submit(...) on the fleet")
        inputs, sources = draft.encode(self._bound(args, kwargs))
        if self._is_being_written:
            raise Invalid(f"workflows must not call each other in a cycle: {self.workflow_id} calls itself")
        draft.called |= {**self.written.called, self.workflow_id: self.workflow}
        node_id = draft.add(self.__name__, WorkflowNode(workflow=self.workflow_id, inputs=inputs), sources)
        return seen_from_outside(self.written.returned, draft, node_id)  # type: ignore[no-any-return]

    def inputs(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """The arguments as inputs of a job. Raises Invalid for values that the parameters do not accept."""
        inputs = {name: encode(value) for name, value in self._bound(args, kwargs).items()}
        self.signature.check(inputs)
        return inputs

    def check(self, inputs: Mapping[str, Any]) -> None:
        """Raises Invalid for inputs that the parameters do not accept; those with a default may be None."""
        parameters = self.signature.inner.parameters
        present = {
            name: value for name, value in inputs.items() if value is not None or parameters[name].default is EMPTY
        }
        self.signature.check(present)

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        bound = self.signature.bind(args, kwargs)
        for name, value in bound.items():
            default = self.signature.inner.parameters[name].default
            if value is None and default not in (None, EMPTY):
                raise Invalid(
                    f"{name}=None of workflow {self.workflow_id!r} would count as not given, and its default be used: "
                    f"{default!r}; make None the default, and let a task decide"
                )
        return bound

    def run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a job in this process; returns its result. Raises JobFailed when it does not complete."""
        fleet = python.local.LocalFleet.shared()
        outcome = fleet.run(self.workflow, self.inputs(*args, **kwargs), called=self.written.called)
        return self.result_of(outcome)

    async def run_async(self, *args: P.args, **kwargs: P.kwargs) -> R:
        fleet = python.local.LocalFleet.shared()
        outcome = await fleet.run_async(self.workflow, self.inputs(*args, **kwargs), called=self.written.called)
        return self.result_of(outcome)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> int:
        """Submit a job, like `dagmaster submit`; returns its id."""
        return python.submission.submit(self.workflow, self.inputs(*args, **kwargs), self.written.called)

    async def submit_async(self, *args: P.args, **kwargs: P.kwargs) -> int:
        return await python.submission.submit_async(self.workflow, self.inputs(*args, **kwargs), self.written.called)

    def result_of(self, outcome: JobOutcome) -> R:
        """The return value of the function, with the values of a job. Raises JobFailed."""
        outcome.need_completed()
        result: R = decode(self.value_of(outcome.result or {}, outcome.inputs), self.signature.hints["return"])
        return result

    def value_of(self, outputs: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        """The return value as JSON data, from the outputs by node. Raises ExpressionFailed for a missing value."""
        return returned_value(self.workflow.returns, outputs, inputs)


AnyWorkflow = WorkflowFunction[..., Any]
defined: dict[str, AnyWorkflow] = {}


@overload
def workflow(fn: Callable[P, R], /) -> WorkflowFunction[P, R]: ...
@overload
def workflow(
    *,
    id: str | None = None,
    name: str | None = None,
    version: int = 1,
    description: str | None = None,
    retention_days: float | None = None,
    timeout_seconds: float | None = None,
    schedule: str | timedelta | Mapping[str, Any] | None = None,
    timezone: str | None = None,
    catchup: str | None = None,
    on_failure: AnyTask | Sequence[AnyTask] = (),
    finally_: AnyTask | Sequence[AnyTask] = (),
) -> Callable[[Callable[P, R]], WorkflowFunction[P, R]]: ...
def workflow(
    fn: Any = None,
    /,
    *,
    id: str | None = None,
    name: str | None = None,
    version: int = 1,
    description: str | None = None,
    retention_days: float | None = None,
    timeout_seconds: float | None = None,
    schedule: str | timedelta | Mapping[str, Any] | None = None,
    timezone: str | None = None,
    catchup: str | None = None,
    on_failure: AnyTask | Sequence[AnyTask] = (),
    finally_: AnyTask | Sequence[AnyTask] = (),
) -> Any:
    """Make a workflow of a function: its calls of tasks become nodes, its parameters inputs.

    `schedule` is a cron expression, an interval or a mapping, like the key `schedule` of a file. The tasks of
    `on_failure` and `finally_` run after all others and receive the parameters `error`, `failed_node` and `status`.
    """

    def make(function: Callable[..., Any]) -> WorkflowFunction[..., Any]:
        if not inspect.isfunction(function) or inspect.iscoroutinefunction(function):
            raise Misconfigured(f"@workflow is for plain functions (def, not async def), not for {function!r}")
        head = {
            "workflow_id": id or function.__name__,
            "name": name or id or function.__name__,
            "version": version,
            "description": (inspect.getdoc(function) or "") if description is None else description,
            "retention_days": retention_days,
            "timeout_seconds": timeout_seconds,
            "schedule": schedule_of(schedule, timezone, catchup),
        }
        last = {"on_failure": _tasks(on_failure), "finally": _tasks(finally_)}
        declared = WorkflowFunction(function, head, last)
        _remember(declared)
        return declared

    return make if fn is None else make(fn)


job = workflow


def _tasks(value: AnyTask | Sequence[AnyTask]) -> Sequence[AnyTask]:
    several = [value] if isinstance(value, TaskFunction) else list(value)
    for task in several:
        if not isinstance(task, TaskFunction):
            raise Misconfigured(f"on_failure and finally_ are tasks, not {task!r}; is @task missing?")
    return several


def _called_last(draft: Draft, task: AnyTask) -> str:
    known = {name: Handle(draft, f"job.{name}") for name in FACTS if name in task.signature.inner.parameters}
    return str(task(**known)._nodes[0])


def _remember(function: WorkflowFunction[..., Any]) -> None:
    """Remember module-level workflows for the catalogue."""
    if LOCAL in function.fn.__qualname__:
        return
    existing = defined.get(function.workflow_id)
    if existing is not None and _place(existing) != _place(function):
        raise Misconfigured(
            f"two workflows are named {function.workflow_id!r}: {_place(existing)} and {_place(function)}; "
            "give one of them another id: @workflow(id=...)"
        )
    defined[function.workflow_id] = function


def _place(function: WorkflowFunction[..., Any]) -> str:
    return f"{module_of(function.fn)}.{function.fn.__qualname__}"
