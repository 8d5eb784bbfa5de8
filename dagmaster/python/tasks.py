"""`@task`: a function that workers can run, and that adds a node when a workflow function calls it."""

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

from dagmaster.errors import Conflict, Misconfigured
from dagmaster.handlers import Handler, HandlerContext, registry
from dagmaster.handlers.current import find_current_task
from dagmaster.handlers.registry import NAME_LIMIT, Isolation
from dagmaster.model.cache_policy import Cache, Caching, read_caching
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.workflow import ChildTask, FanInNode, FanOutNode, TaskNode
from dagmaster.python.handles import Draft, Handle, find_draft, wait_for
from dagmaster.python.options import Duration, retry_of, seconds_of
from dagmaster.python.runners import runner_of
from dagmaster.python.signatures import Signature, module_of

P = ParamSpec("P")
R = TypeVar("R")

LOCAL = "<locals>"
LAMBDA = "<lambda>"


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The options of the task's nodes; None uses the settings."""

    name: str
    queue: str | None = None
    timeout_seconds: float | None = None
    retry: RetryPolicy | None = None
    after: tuple[Handle, ...] = ()
    allow_failure: bool = False


class TaskFunction(Generic[P, R]):
    """In a workflow function, a call adds a node and returns a handle of its result. Elsewhere it calls the function.

    `fn` is the function itself, `handler` its name for workers.
    """

    def __init__(self, fn: Callable[P, Any], handler: str, options: TaskOptions, signature: Signature) -> None:
        self.fn = fn
        self.handler = handler
        self.chosen = options
        self.signature = signature
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(self, name, getattr(fn, name, None))

    def __repr__(self) -> str:
        return f"<task {self.handler}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        draft = find_draft()
        if draft is None:
            result: R = self.fn(*args, **kwargs)
            return result
        chosen = self.chosen
        params, sources = draft.encode(self.signature.bind(args, kwargs))
        node = TaskNode(**self._task(params), allow_failure=chosen.allow_failure)
        node_id = draft.add(chosen.name, node, [*sources, *wait_for(draft, chosen.after)])
        expression = f"nodes.{node_id}.output.result"
        if chosen.allow_failure:
            expression = f"({expression} | default(none))"
        return Handle(draft, expression, (node_id,))  # type: ignore[return-value]

    def map(self, items: Any, /, **constants: Any) -> list[R]:
        """One task per item, which becomes the first argument; `constants` are the same for all.

        In a workflow function, the items may be known only at run time. The results are in the order of the items.
        """
        first = self.signature.first_parameter
        if first is None:
            raise TypeError(f"{self.handler} has no first parameter for the items of map()")
        draft = find_draft()
        if draft is None:
            return [self.fn(item, **constants) for item in items]
        source, sources = draft.encode(items if isinstance(items, Handle) else list(items))
        params, more = draft.encode(self.signature.bind((), {**constants, first: None}) | {first: None})
        after = [*sources, *more, *wait_for(draft, self.chosen.after)]
        return self._spread(draft, source, {**params, first: "{{ item }}"}, after)

    def options(
        self,
        *,
        name: str | None = None,
        retries: int | RetryPolicy | None = None,
        retry_delay: Duration | None = None,
        timeout: Duration | None = None,
        queue: str | None = None,
        after: Any = (),
        allow_failure: bool | None = None,
    ) -> "TaskFunction[P, R]":
        """The same task with other options; `after` are results to wait for without using them."""
        old = self.chosen
        several = tuple(after) if isinstance(after, list | tuple) else (after,)
        new = replace(
            old,
            name=name or old.name,
            queue=queue or old.queue,
            timeout_seconds=seconds_of(timeout) if timeout is not None else old.timeout_seconds,
            retry=retry_of(retries, retry_delay, old.retry),
            after=(*old.after, *several),
            allow_failure=old.allow_failure if allow_failure is None else allow_failure,
        )
        return TaskFunction(self.fn, self.handler, new, self.signature)

    def _task(self, params: dict[str, Any]) -> dict[str, Any]:
        chosen = self.chosen
        return {
            "handler": self.handler,
            "queue": chosen.queue,
            "params": params,
            "timeout_seconds": chosen.timeout_seconds,
            "retry": chosen.retry,
        }

    def _spread(self, draft: Draft, source: Any, params: dict[str, Any], after: list[str]) -> list[R]:
        name = self.chosen.name
        child, may_fail = ChildTask(**self._task(params)), self.chosen.allow_failure
        fan_out = FanOutNode(source=source, task=child, retry=self.chosen.retry, allow_failure=may_fail)
        spread = draft.add(name, fan_out, after)
        gather = draft.add(f"{name}_all", FanInNode(source_node=spread), [spread])
        none_of_failed = " | map('default', {'result': none}, true)" if may_fail else ""
        expression = f"nodes.{gather}.output.results{none_of_failed} | map(attribute='result') | list"
        return Handle(draft, expression, (gather,), first=spread)  # type: ignore[return-value]


AnyTask = TaskFunction[..., Any]


@overload
def task(fn: Callable[P, Coroutine[Any, Any, R]], /) -> TaskFunction[P, R]: ...
@overload
def task(fn: Callable[P, R], /) -> TaskFunction[P, R]: ...
@overload
def task(
    *,
    name: str | None = None,
    retries: int | RetryPolicy | None = None,
    retry_delay: Duration | None = None,
    timeout: Duration | None = None,
    queue: str | None = None,
    isolation: Isolation = "auto",
    memory_mb: int | None = None,
    allow_failure: bool = False,
    cache: Cache | None = None,
    cache_version: str = "",
) -> "TaskDecorator": ...
def task(
    fn: Any = None,
    /,
    *,
    name: str | None = None,
    retries: int | RetryPolicy | None = None,
    retry_delay: Duration | None = None,
    timeout: Duration | None = None,
    queue: str | None = None,
    isolation: Isolation = "auto",
    memory_mb: int | None = None,
    allow_failure: bool = False,
    cache: Cache | None = None,
    cache_version: str = "",
) -> Any:
    """Let workers run this function as `module:name`, with the arguments of its signature.

    `name` is the name of its nodes. `retries` is the number of retries, or a RetryPolicy; `retry_delay` is the first
    delay, which doubles. `isolation` is that of handlers. `cache` is how long tasks with the same arguments reuse a
    result; change `cache_version` when the function computes another.
    """
    caching = read_caching(cache, cache_version)

    def make(function: Callable[..., Any]) -> TaskFunction[..., Any]:
        options = TaskOptions(
            name or function.__name__,
            queue,
            None if timeout is None else seconds_of(timeout),
            retry_of(retries, retry_delay),
            allow_failure=allow_failure,
        )
        return _define(function, options, isolation, memory_mb, caching)

    return make if fn is None else make(fn)


class TaskDecorator(Protocol):
    """The type of `task(...)`, for type checkers."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> TaskFunction[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> TaskFunction[P, R]: ...


def call(handler: str, /, **params: Any) -> Any:
    """In a workflow function: add a node for a registered handler; returns a handle of its whole output."""
    draft = find_draft()
    if draft is None:
        raise Conflict(f"call({handler!r}) can be used only in a workflow function")
    encoded, sources = draft.encode(params)
    node_id = draft.add(handler.rpartition(".")[2], TaskNode(handler=handler, params=encoded), sources)
    return Handle(draft, f"nodes.{node_id}.output", (node_id,))


def current_task() -> HandlerContext:
    """The running task, for its progress, checkpoints, logger and ids. Raises Conflict outside a task."""
    task = find_current_task()
    if task is None:
        raise Conflict("no task is running; current_task() works only in functions that a worker runs")
    return task


def _define(
    function: Callable[..., Any],
    options: TaskOptions,
    isolation: Isolation,
    memory_mb: int | None,
    caching: Caching | None,
) -> TaskFunction[..., Any]:
    if isinstance(function, staticmethod):
        raise Misconfigured(f"write @staticmethod above @task, not below: {function!r}")
    if not inspect.isfunction(function):
        raise Misconfigured(f"@task is for functions, not for {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Misconfigured(f"the task {function.__qualname__} is a generator; return a list")
    signature = Signature(function)
    if _is_method(function, signature):
        raise Misconfigured(
            f"the task {function.__qualname__} is a method, and workers have no object for it; "
            "make it a function, or a @staticmethod"
        )
    name = _free_name(function)
    runner = runner_of(function, signature)
    queue, timeout, retry = options.queue, options.timeout_seconds, options.retry
    registry.register(
        Handler(name, runner, queue, timeout, None, isolation, memory_mb, retry, caching, schema=signature.schema)
    )
    return TaskFunction(function, name, options, signature)


def _is_method(function: Callable[..., Any], signature: Signature) -> bool:
    around, _, _ = function.__qualname__.rpartition(".")
    is_in_class = around != "" and not around.endswith(LOCAL)
    return is_in_class and next(iter(signature.inner.parameters), "") in ("self", "cls")


def _free_name(function: Callable[..., Any]) -> str:
    """Number the names of local functions and lambdas when they are taken: there may be several of the same name."""
    name = f"{module_of(function)}:{function.__qualname__}"
    if len(name) > NAME_LIMIT - 4:
        name = f"{name[:100]}~{sha256(name.encode()).hexdigest()[:12]}"
    used = set(registry.names()) if LOCAL in name or LAMBDA in name else set()
    candidate, number = name, 1
    while candidate in used:
        number += 1
        candidate = f"{name}~{number}"
    return candidate
