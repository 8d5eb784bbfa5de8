"""Run a handler and turn its outcome into a result."""

import asyncio
import base64
import inspect
import re
import signal
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence, Set
from concurrent.futures import Executor
from contextlib import aclosing
from contextvars import copy_context
from dataclasses import asdict, fields, is_dataclass, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import PurePath
from traceback import walk_tb
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError

from dagmaster.handlers.contract import (
    HandlerContext,
    HandlerResult,
    Interrupted,
    Permanent,
    Retry,
    clean_text,
    well_formed,
)
from dagmaster.handlers.current import working_on
from dagmaster.handlers.registry import Handler
from dagmaster.model.retry import WRONG_CALL
from dagmaster.tracing import record

CAUSES_SHOWN = 3
TYPES_KEPT = 32
DEPTH_LIMIT = 200
LARGEST_EXPONENT = 308
NUMBER_LENGTH_LIMIT = 400
JSON_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
SMALLEST_INTEGER, LARGEST_INTEGER = -(2**63), 2**64 - 1  # the range of orjson

# The modules that call handlers.
CALLERS = ("dagmaster.handlers.invocation", "dagmaster.worker.processes.attempt", "dagmaster.python.")
# Only after an even number of backslashes; after an odd number, \u0000 is plain text.
NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")

RESULT_KEYS = {"type", *(field.name for field in fields(HandlerResult))}
NO_RESULT = HandlerResult.failed("the handler ended without yielding a result")
YIELDS = (
    'it may yield {"type": "checkpoint", "phase", "data", "artifacts"}, '
    '{"type": "progress", "current", "total", "message"} and '
    '{"type": "result", "output"} or other fields of HandlerResult'
)


class TooLong(Permanent):
    """The output exceeds the limit."""


async def call(handler: Handler, ctx: HandlerContext, *, executor: Executor | None) -> HandlerResult:
    """Run the handler to its end. Raises only the caller's own cancellation, Interrupted and Ctrl-C.

    A thread cannot be stopped: when the call is cancelled, `ctx.cancelled` is set and the thread is abandoned.
    """
    me = asyncio.current_task()
    try:
        arguments = arguments_of(handler, ctx)
        with working_on(ctx):
            return normalised(await _run(handler, arguments, ctx, executor))
    except Interrupted:
        raise
    except BaseException as error:  # SystemExit and Rust panics too: a worker survives its handlers.
        if is_callers_own(error, me):
            if isinstance(error, asyncio.CancelledError):
                ctx.cancelled.set()
            raise
        record(error)
        return failure(error, ctx)


def is_callers_own(error: BaseException, me: "asyncio.Task[Any] | None") -> bool:
    """Whether it came from outside the handler: its task was cancelled, its coroutine closed or Ctrl-C pressed."""
    match error:
        case asyncio.CancelledError():
            # A handler that lets the cancellation of an inner task escape has failed; it was not cancelled.
            return me is not None and me.cancelling() > 0
        case GeneratorExit():
            # A dropped coroutine is closed outside any step of its task.
            return me is None or _present_task() is not me
        case KeyboardInterrupt():
            return _ctrl_c_raises()
    return False


def _present_task() -> "asyncio.Task[Any] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:  # No running loop.
        return None


def _ctrl_c_raises() -> bool:
    """Whether Ctrl-C has its default effect. Commands handle it: there, only a handler raises KeyboardInterrupt."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def arguments_of(handler: Handler, ctx: HandlerContext) -> list[Any]:
    if handler.params is None:
        return [ctx]
    try:
        params = handler.params.model_validate(ctx.params)
    except ValidationError as error:
        raise Permanent(f"invalid params: {problems_of(error)}") from error
    return [ctx, params] if handler.takes_params else [ctx]


def problems_of(error: ValidationError) -> str:
    # Without the values: params may hold secrets, and this message goes to the timeline.
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(
        ": ".join(filter(None, [".".join(map(str, problem["loc"])), problem["msg"]])) for problem in problems
    )


async def _run(handler: Handler, arguments: list[Any], ctx: HandlerContext, executor: Executor | None) -> Any:
    if handler.in_loop:
        return await settle(handler.function(*arguments), ctx)
    run = copy_context().run
    return await asyncio.get_running_loop().run_in_executor(executor, run, _in_thread, handler, arguments, ctx)


def _in_thread(handler: Handler, arguments: list[Any], ctx: HandlerContext) -> Any:
    try:
        value = handler.function(*arguments)
        if inspect.isawaitable(value) or inspect.isasyncgen(value):
            return asyncio.run(settle(value, ctx))
    except (StopIteration, KeyboardInterrupt, GeneratorExit) as error:
        # StopIteration would hang its future; the others would be taken for Ctrl-C and for the end of the caller.
        raise RuntimeError(f"the handler raised {type(error).__name__}") from error
    return value


async def settle(value: Any, ctx: HandlerContext) -> Any:
    if not isinstance(value, AsyncGenerator):
        return await value
    result = NO_RESULT
    async with aclosing(value):
        async for item in value:
            result = await _take(item, ctx) or result
    return result


async def _take(item: Any, ctx: HandlerContext) -> HandlerResult | None:
    """Process an item that a generator yields; returns a result, if it is one."""
    match item:
        case HandlerResult():
            return item
        case {"type": "checkpoint", "phase": phase}:
            await ctx.checkpoint(phase, item.get("data"), artifacts=item.get("artifacts", ()))
        case {"type": "progress", "current": current}:
            ctx.progress(current, item.get("total"), item.get("message", ""))
        case {"type": "result"} if item.keys() <= RESULT_KEYS:
            fields = {key: value for key, value in item.items() if key != "type"}
            return HandlerResult(**{"success": fields.get("error_message") is None, **fields})
        case _:
            kind = f"a dict with {', '.join(map(str, item))}" if isinstance(item, dict) else f"a {type(item).__name__}"
            raise Permanent(f"the handler yielded {kind}; {YIELDS}")
    return None


def normalised(value: Any) -> HandlerResult:
    if not isinstance(value, HandlerResult):
        return HandlerResult.ok(_as_output(value))
    if value.success:
        return replace(value, output=_as_output(value.output))
    message = clean_text(str(value.error_message or "the handler reported a failure without a message"))
    return replace(value, error_message=message)


def _as_output(value: Any) -> dict[str, Any]:
    match value:
        case None:
            return {}
        case dict():
            return value
        case BaseModel():
            return value.model_dump(mode="json")
        case _ if is_dataclass(value) and not isinstance(value, type):
            return asdict(value)
        case _:
            return {"result": value}


def failure(error: BaseException, ctx: HandlerContext) -> HandlerResult:
    message, types = _message(error), error_types(error)
    result = HandlerResult(False, error_message=clean_text(message), error_types=types)
    match error:
        case Permanent():
            ctx.logger.warning("handler %s failed permanently: %s", ctx.handler, message)
            return replace(result, permanent=True)
        case Retry():
            ctx.logger.info("handler %s requested a retry: %s", ctx.handler, message)
            return replace(result, retry_after_seconds=error.after_seconds)
    ctx.logger.error("handler %s failed", ctx.handler, exc_info=error)
    types = (*types, WRONG_CALL) if _is_wrong_call(error) else types
    return replace(result, error_message=clean_text(_described(error)), error_types=types)


def _is_wrong_call(error: BaseException) -> bool:
    """Whether the arguments did not fit: such an error is raised in the frame of the caller, which is this module."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)] if isinstance(error, TypeError) else []
    return bool(frames) and str(frames[-1].f_globals.get("__name__", "")).startswith(CALLERS)


def error_types(error: BaseException) -> tuple[str, ...]:
    """The names for retry rules: the error's class and its bases, nearest first, with and without module."""
    names: list[str] = []
    for kind in type(error).__mro__:
        if kind in (object, BaseException):
            break
        names.append(kind.__name__)
        if kind.__module__ not in ("builtins", "__main__"):
            names.append(f"{kind.__module__}.{kind.__name__}")
    return tuple(names[:TYPES_KEPT])


def _described(error: BaseException) -> str:
    """`TypeName: message`; for an exception group also its first members."""
    text = ": ".join(filter(None, [type(error).__name__, _message(error)]))
    if isinstance(error, BaseExceptionGroup):
        return f"{text}: {'; '.join(map(_described, error.exceptions[:CAUSES_SHOWN]))}"
    return text


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - a broken __str__ in a handler's exception must not hide the failure
        return ""


def encode_output(output: Any, max_bytes: int, label: str = "the output") -> bytes:
    """Encode as JSON that PostgreSQL accepts. Raises TooLong, and Permanent for values that JSON does not have.

    Sets become sorted lists, bytes base64, timedeltas seconds, Decimals exact numbers, NaN null.
    """
    try:
        encoded = _dumps(output)
    except TypeError:  # includes orjson's own errors, which lack the path
        encoded = _dumps(_plain(output, "output", DEPTH_LIMIT))
    if rb"\u0000" in encoded:
        encoded = NUL.sub(rb"\1\\ufffd", encoded)
    if len(encoded) > max_bytes:
        raise TooLong(
            f"{label} has {len(encoded):,} bytes; the limit is {max_bytes:,}. "
            "Store large results in files or tables, and return their location"
        )
    return encoded


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value, default=_expanded, option=JSON_OPTIONS)


def _expanded(value: Any) -> Any:
    """Convert a type that orjson does not know."""
    match value:
        case Decimal():
            return _number(value)
        case PurePath():
            return str(value)
        case Set():
            return _in_order(value)
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case timedelta():
            return value.total_seconds()
        case BaseModel():
            return value.model_dump(mode="json")
        case Mapping():
            return dict(value)
    for method in ("_asdict", "tolist"):  # named tuples; numpy arrays of types that orjson does not know
        if callable(expand := getattr(value, method, None)) and not isinstance(value, type):
            return expand()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"a {type(value).__name__} is not JSON")


def _number(value: Decimal) -> Any:
    if not value.is_finite():
        return None
    text = str(value)
    if abs(value.adjusted()) > LARGEST_EXPONENT or len(text) > NUMBER_LENGTH_LIMIT:
        return text  # too large for the numbers of most JSON parsers
    return orjson.Fragment(text.encode())


def _in_order(values: Set[Any]) -> list[Any]:
    """Sort a set, whose order differs between processes: a second attempt should return the same output."""
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=repr)


def _plain(value: Any, path: str, depth: int) -> Any:
    """The slow path: find the value that orjson rejects, and convert it or name its place."""
    if depth == 0:
        raise Permanent(f"cannot store the output: it is nested more than {DEPTH_LIMIT} levels deep, or in a circle")
    match value:
        case str():
            return well_formed(value)
        case bool() | float() | None:
            return value
        case int():
            return _integer(value, path)
        case dict():
            return {_key(key, path): _plain(item, f"{path}.{key}", depth - 1) for key, item in value.items()}
        case list():
            return [_plain(item, f"{path}[{index}]", depth - 1) for index, item in enumerate(value)]
    return _plain_object(value, path, depth)


def _integer(value: int, path: str) -> int:
    if SMALLEST_INTEGER <= value <= LARGEST_INTEGER:
        return int(value)
    raise Permanent(f"cannot store {path}: an integer of more than 64 bits would lose digits; return it as a string")


def _plain_object(value: Any, path: str, depth: int) -> Any:
    try:
        return orjson.Fragment(_dumps(value))
    except TypeError:
        pass  # a part of it, or the whole, is unknown
    try:
        expanded = _expanded(value)
    except (TypeError, ValueError) as error:
        raise Permanent(f"cannot store {path}: a {type(value).__name__} is not JSON") from error
    return _plain(expanded, path, depth - 1)


def _key(key: Any, path: str) -> Any:
    if isinstance(key, str):
        return well_formed(key)
    if isinstance(key, PurePath | Decimal):
        return str(key)
    if callable(as_native := getattr(key, "item", None)):  # a numpy scalar
        return as_native()
    try:
        _dumps({key: None})
    except TypeError as error:
        raise Permanent(f"cannot store {path}: a {type(key).__name__} cannot be a key in JSON") from error
    return key
