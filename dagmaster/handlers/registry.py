"""The registry of handlers, the only functions that are called by name."""

import difflib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeVar, get_args, overload

from pydantic import BaseModel, PydanticUserError
from pydantic.errors import PydanticInvalidForJsonSchema

from dagmaster.errors import Misconfigured, UnknownHandler
from dagmaster.handlers.schemas import schema_of
from dagmaster.model.cache_policy import Cache, Caching, read_caching
from dagmaster.model.contracts import ENTRY_POINT_MARK, Contract, Contracts, by_spelling
from dagmaster.model.optional_handlers import how_to_load
from dagmaster.model.retry import RetryPolicy

Isolation = Literal["auto", "thread", "process"]
Function = TypeVar("Function", bound=Callable[..., Any])

NAME_LIMIT = 128
NAMES_SHOWN = 10


@dataclass(frozen=True, eq=False)
class Handler:
    """A function and how to run it. Validated when it is created, before any task needs it."""

    name: str
    function: Callable[..., Any]
    queue: str | None = None
    timeout_seconds: float | None = None
    params: type[BaseModel] | None = None
    isolation: Isolation = "auto"
    memory_mb: int | None = None
    retry: RetryPolicy | None = None
    caching: Caching | None = None
    schema: Callable[[], Mapping[str, Any]] | None = None
    in_loop: bool = field(init=False)
    takes_params: bool = field(init=False)

    def __post_init__(self) -> None:
        _check(self)
        # Computed once: inspecting signatures for each task would cost more than many handlers.
        object.__setattr__(self, "in_loop", self.isolation == "auto" and _is_async(self.function))
        object.__setattr__(self, "takes_params", _takes_params(self))

    def contract(self, *, in_full: bool = True) -> Contract:
        """`in_full` includes the schema of the parameters and the documentation."""
        schema = self._params_schema() if in_full else None
        documentation = (inspect.getdoc(inspect.unwrap(self.function)) or "") if in_full else ""
        return Contract(self.name, self.queue, self.timeout_seconds, self.retry, schema, documentation)

    def _params_schema(self) -> Mapping[str, Any] | None:
        try:
            return self._generated_schema
        except (PydanticInvalidForJsonSchema, PydanticUserError, Misconfigured):
            return None  # JSON Schema cannot express every type.

    @cached_property
    def _generated_schema(self) -> Mapping[str, Any] | None:
        """Generated once: for the 64 built-in handlers it takes 0.1 s."""
        if self.params is not None:
            return schema_of(self.params)
        return self.schema() if self.schema is not None else None


class Registry:
    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._dotted: dict[str, Handler] = {}

    def register(self, handler: Handler) -> None:
        """Raises Misconfigured for a second handler of the same name, unless it is a reload of the first."""
        known = self._handlers.get(handler.name)
        if known and not _is_reload(known.function, handler.function):
            raise Misconfigured(
                f"two handlers are named {handler.name!r}: {_place(known.function)} and {_place(handler.function)}"
            )
        self._handlers[handler.name] = handler
        if ENTRY_POINT_MARK in handler.name:
            self._dotted[handler.name.replace(ENTRY_POINT_MARK, ".")] = handler

    def get(self, name: str) -> Handler:
        try:
            return self._handlers.get(name) or self._dotted[name]
        except KeyError:
            raise UnknownHandler(f"no handler is named {name!r}; {self._hint(name)}") from None

    def names(self) -> list[str]:
        return sorted(self._handlers)

    def spellings(self) -> Mapping[str, Handler]:
        """The handlers by all accepted names: `tasks:clean` also as `tasks.clean`."""
        return {**self._dotted, **self._handlers}

    def queues(self) -> Mapping[str, str | None]:
        """The queue that each handler is registered with."""
        return {name: handler.queue for name, handler in self.spellings().items()}

    def contracts(self, *, in_full: bool = False) -> Contracts:
        """The contracts by all spellings."""
        return by_spelling(handler.contract(in_full=in_full) for handler in self)

    def own_contracts(self) -> Contracts:
        """The full contracts, for tasks that only this process runs."""
        return {name: replace(contract, is_uniform=True) for name, contract in self.contracts(in_full=True).items()}

    def __iter__(self) -> Iterator[Handler]:
        return iter(list(self._handlers.values()))

    def _hint(self, name: str) -> str:
        if (advice := how_to_load(name, self._handlers)) is not None:
            return advice
        near = difflib.get_close_matches(name, self._handlers, n=3)
        if near:
            return f"did you mean {' or '.join(map(repr, near))}?"
        names = self.names()
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        return f"loaded are {', '.join(names[:NAMES_SHOWN]) or 'none'}{more}"


registry = Registry()


@overload
def handler(name: Function, /) -> Function: ...
@overload
def handler(
    name: str | None = None,
    *,
    queue: str | None = None,
    timeout_seconds: float | None = None,
    params: type[BaseModel] | None = None,
    isolation: Isolation = "auto",
    memory_mb: int | None = None,
    cache: Cache | None = None,
    cache_version: str = "",
) -> Callable[[Function], Function]: ...
def handler(
    name: Any = None,
    *,
    queue: str | None = None,
    timeout_seconds: float | None = None,
    params: type[BaseModel] | None = None,
    isolation: Isolation = "auto",
    memory_mb: int | None = None,
    cache: Cache | None = None,
    cache_version: str = "",
) -> Any:
    """Let workers run this function as `name`, by default the function's own name.

    Plain functions run in threads; coroutines and async generators share the worker's loop. With isolation="thread"
    they have a thread and a loop of their own, with isolation="process" a process that can always be stopped and may
    use at most `memory_mb`. With `params`, the parameters are validated and passed as the second argument if the
    function takes one. With `cache`, a task with the parameters of an earlier one reuses its result for that time, as
    long as `cache_version` stays the same.
    """
    if callable(name):
        return handler()(name)
    caching = read_caching(cache, cache_version)

    def register(function: Function) -> Function:
        handler_name = getattr(function, "__name__", "") if name is None else name
        registry.register(
            Handler(handler_name, function, queue, timeout_seconds, params, isolation, memory_mb, caching=caching)
        )
        return function

    return register


register_handler = handler


def _check(handler: Handler) -> None:
    name = handler.name
    if not isinstance(name, str) or name != name.strip() or not 0 < len(name) <= NAME_LIMIT or name == "<lambda>":
        raise Misconfigured(f"a handler needs a name of 1 to {NAME_LIMIT} characters, not {name!r}")
    if inspect.isgeneratorfunction(handler.function):
        raise Misconfigured(f"handler {name!r} is a plain generator; write `async def`, or use ctx.checkpoint")
    if handler.isolation not in get_args(Isolation):
        raise Misconfigured(
            f"handler {name!r}: isolation must be 'auto', 'thread' or 'process', not {handler.isolation!r}"
        )
    if handler.memory_mb is not None and (handler.isolation != "process" or handler.memory_mb < 1):
        raise Misconfigured(f"handler {name!r}: memory_mb must be above 0 and requires isolation='process'")
    if handler.timeout_seconds is not None and not 0 < handler.timeout_seconds < math.inf:
        raise Misconfigured(f"handler {name!r}: timeout_seconds must be above 0, not {handler.timeout_seconds}")


def _is_async(function: Callable[..., Any]) -> bool:
    candidates = (function, getattr(function, "__call__", None))  # noqa: B004 - the method itself is needed
    return any(
        inspect.iscoroutinefunction(candidate) or inspect.isasyncgenfunction(candidate) for candidate in candidates
    )


def _takes_params(handler: Handler) -> bool:
    signature = inspect.signature(handler.function)
    if handler.params and _accepts(signature, 2):
        return True
    if _accepts(signature, 1):
        return False
    expected = "(ctx) or (ctx, params)" if handler.params else "(ctx), or (ctx, params) with params=MODEL declared"
    raise Misconfigured(f"handler {handler.name!r} takes {signature}; it should take {expected}")


def _accepts(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _is_reload(old: Callable[..., Any], new: Callable[..., Any]) -> bool:
    """Whether it is the same function, defined again by a reload, under a second module name or in a notebook cell."""
    if old is new:
        return True
    name = getattr(new, "__qualname__", "<unknown>")
    if "<" in name or name != getattr(old, "__qualname__", None):  # <locals> and <lambda> are not unique.
        return False
    return old.__module__ == new.__module__ or _file(old) == _file(new)


def _file(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code.co_filename if code else f"<{function.__module__}>"


def _place(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", repr(function))
    return f"{getattr(function, '__module__', '?')}.{name}"
