"""Built-in handlers for first steps, tests and exercises."""

import asyncio
import math
import random
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from dagmaster.handlers.contract import HandlerContext, HandlerResult, Permanent
from dagmaster.handlers.registry import handler
from dagmaster.settings import load_settings
from dagmaster.storage import ReferenceRefused, open_storage

BYTES_PER_MB = 1024 * 1024

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@handler("echo")
async def echo(ctx: HandlerContext) -> dict[str, Any]:
    """Return the parameters. With `steps`, perform that many steps of `step_delay` seconds each.

    Each step reports progress and ends with a checkpoint: a later attempt continues after the last one.
    """
    steps, delay = ctx.params.get("steps"), ctx.params.get("step_delay")
    if type(steps) is not int:  # Parameters of any name can be echoed, `steps` among them.
        return {"echoed_params": ctx.params}
    names = [f"step_{number}" for number in range(1, steps + 1)]
    first = len(names) - len(ctx.remaining(names)) + 1
    for number, name in enumerate(names[first - 1 :], first):
        await asyncio.sleep(delay if isinstance(delay, int | float) and 0 <= delay < math.inf else 0)
        ctx.progress(number, steps, f"step {number} of {steps}")
        await ctx.checkpoint(name, {"completed_steps": names[:number]})
    return {"echoed_params": ctx.params, "steps_completed": len(names), "completed_steps": names}


@handler("collect")
async def collect(ctx: HandlerContext) -> dict[str, Any]:
    """Return a list of `values`, such as the results of other nodes, as one result."""
    return {"result": ctx.params.get("values", [])}


class Greeting(BaseModel):
    message: str = "Hello, world!"


@handler("hello_world", params=Greeting)
async def hello_world(ctx: HandlerContext, params: Greeting) -> Greeting:
    ctx.logger.info("%s", params.message)
    return params


class Sleep(BaseModel):
    seconds: Seconds = 1.0


@handler("sleep", params=Sleep)
async def sleep(ctx: HandlerContext, params: Sleep) -> dict[str, float]:
    await asyncio.sleep(params.seconds)
    return {"slept_seconds": params.seconds}


class Failure(BaseModel):
    message: str = "failed, as requested"
    permanent: bool = False


@handler("fail", params=Failure)
async def fail(ctx: HandlerContext, params: Failure) -> HandlerResult:
    return HandlerResult.failed(params.message, permanent=params.permanent)


class Flakiness(BaseModel):
    """`fail_attempts` replaces chance: that many attempts fail and the next one succeeds."""

    failure_rate: float = Field(default=0.2, ge=0, le=1)
    fail_attempts: int | None = Field(default=None, ge=0)
    seconds: Seconds = 0.0


@handler("flaky_echo", params=Flakiness)
async def flaky_echo(ctx: HandlerContext, params: Flakiness) -> HandlerResult:
    """Take some time, then fail or return the parameters."""
    await asyncio.sleep(params.seconds)
    if params.fail_attempts is None:
        fails = random.random() < params.failure_rate
    else:
        fails = ctx.retry_count < params.fail_attempts
    if fails:
        return HandlerResult.failed(f"flaky_echo failed in attempt {ctx.retry_count + 1}")
    return HandlerResult.ok({"echoed_params": ctx.params, "retry_count": ctx.retry_count})


class Phases(BaseModel):
    """`phases` is a number or a list of names."""

    phases: Annotated[int, Field(ge=1, le=10_000)] | Annotated[list[str], Field(min_length=1)] = 3
    phase_seconds: Seconds = 0.1

    def names(self) -> list[str]:
        if isinstance(self.phases, list):
            return self.phases
        return [f"phase_{number}" for number in range(1, self.phases + 1)]


@handler("multi_phase", params=Phases)
async def multi_phase(ctx: HandlerContext, params: Phases) -> AsyncIterator[dict[str, Any]]:
    """Run the phases with a checkpoint after each, continuing after the last checkpoint of an earlier attempt."""
    names = params.names()
    first = len(names) - len(ctx.remaining(names))
    for index, name in enumerate(names[first:], first):
        await asyncio.sleep(params.phase_seconds)
        yield {"type": "checkpoint", "phase": name, "data": {"completed": names[: index + 1]}}
        yield {"type": "progress", "current": index + 1, "total": len(names), "message": name}
    output = {
        "phases_completed": names,
        "executed": names[first:],
        "resumed_after": names[first - 1] if first else None,
    }
    yield {"type": "result", "output": output}


class SizeQuestion(BaseModel):
    """`path` is a reference to a file of the storage, such as bronze/rivers.tif."""

    size_bytes: int | None = Field(default=None, ge=0)
    path: str | None = None
    threshold_mb: float = Field(default=100, gt=0)
    light_queue: str = "light-tasks"
    heavy_queue: str = "heavy-tasks"

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.size_bytes is None) == (self.path is None):
            raise ValueError("pass either size_bytes or path")
        return self


class SizeAnswer(BaseModel):
    size_bytes: int
    size_mb: float
    is_large: bool
    recommended_queue: str


@handler("size_check", params=SizeQuestion)
async def size_check(ctx: HandlerContext, params: SizeQuestion) -> SizeAnswer:
    """Recommend a queue for a file of this size."""
    size_bytes = params.size_bytes or 0
    if params.path is not None:
        try:
            size_bytes = await open_storage(load_settings()).size(params.path)
        except ReferenceRefused as error:
            raise Permanent(str(error)) from error
    is_large = size_bytes >= params.threshold_mb * BYTES_PER_MB
    return SizeAnswer(
        size_bytes=size_bytes,
        size_mb=round(size_bytes / BYTES_PER_MB, 3),
        is_large=is_large,
        recommended_queue=params.heavy_queue if is_large else params.light_queue,
    )


class Chunk(BaseModel):
    chunk: list[Any]
    operation: Literal["sum", "count", "echo"] = "count"


@handler("chunk_processor", params=Chunk)
def chunk_processor(ctx: HandlerContext, params: Chunk) -> dict[str, Any]:
    match params.operation:
        case "sum":
            result: Any = sum(_number(index, item) for index, item in enumerate(params.chunk))
        case "count":
            result = len(params.chunk)
        case "echo":
            result = params.chunk
    return {"processed": len(params.chunk), "result": result}


def _number(index: int, item: Any) -> int | float:
    if isinstance(item, bool) or not isinstance(item, int | float):
        raise Permanent(f"chunk[{index}] is a {type(item).__name__}, not a number")
    return item
