"""Groups of similar tasks: `map` over chunks of lists and tables, and `reduce` in layers to a single value."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dagmaster.data.references import Chunks, ObjectRef, Referable, ViewRef
from dagmaster.errors import Invalid, UnknownHandler
from dagmaster.handlers import registry
from dagmaster.model.params import FIRST_PARAMETER
from dagmaster.python.apply_items import Callback, apply, create_task
from dagmaster.python.entrypoints import entry_point
from dagmaster.python.graphs import Group, Item, Task
from dagmaster.python.signatures import Signature
from dagmaster.python.tasks import task

COLLECT = "collect"  # a basic handler, known to every worker
CHUNK_SIZE = 10_000
FAN_IN = 1_000
# More parts would make the statement that joins them slow to parse.
PARTS_AT_ONCE = 100

Items = Iterable[Any] | ObjectRef | ViewRef | Chunks


def map(
    callback: Callback,
    items: Items | Referable,
    chunk_size: int = CHUNK_SIZE,
    *,
    chunk_rows: int | None = None,
    **kwargs: Any,
) -> Group:
    """One task per chunk of the items, and one that collects their results in order.

    The first argument of the callback is the chunk, a list or a view of `chunk_size` rows; `kwargs` are the others.

    The items may be a View, of which each chunk has `chunk_rows` rows: a View, or a `pyarrow.Table` where the callback
    is annotated so. The tables that the callback returns, one after the other, are the result: one Object. Only an
    accepted result is used, so that a chunk that is tried again adds nothing twice.
    """
    for name, size in (("chunk_size", chunk_size), ("chunk_rows", chunk_rows)):
        if size is not None and size < 1:
            raise Invalid(f"{name} must be 1 or more, not {size}")
    if isinstance(items, Referable):
        rows = chunk_rows if chunk_rows is not None else chunk_size
        return _of_table("map", callback, map_chunks, items, {"chunk_rows": rows}, kwargs)
    if chunk_rows is not None:
        raise Invalid("chunk_rows is for tables; the chunks of a list have chunk_size items")
    first = first_parameter(callback)
    parts = [create_task(callback, {**kwargs, first: chunk}) for chunk in _chunks(items, chunk_size)]
    collector = Task(COLLECT, {"values": parts})
    return Group(f"map {label_of(callback)}", [*parts, collector], result=collector)


def reduce(
    callback: Callback,
    items: Iterable[Any] | Group | Referable,
    *,
    fan_in: int = FAN_IN,
    chunk_rows: int = CHUNK_SIZE,
    **kwargs: Any,
) -> Group:
    """Tasks that reduce up to `fan_in` values each, in layers, to a single value, which is the result.

    The callback's first argument is a list of items or of earlier results. The items may be a group from `map`: then
    the results of its chunks are the items, without being collected first. They may be a View: then its chunks of
    `chunk_rows` rows, as Views, are the items.
    """
    if fan_in < 2:
        raise Invalid(f"fan_in must be 2 or more, not {fan_in}")
    if isinstance(items, Referable):
        return _of_table("reduce", callback, reduce_chunks, items, {"chunk_rows": chunk_rows, "fan_in": fan_in}, kwargs)
    first = first_parameter(callback)
    values, parts = _mapped(items) if isinstance(items, Group) else (_as_sequence(items), [])
    tasks: list[Task] = []
    while len(values) > 1 or not tasks:
        values = [create_task(callback, {**kwargs, first: some}) for some in lists_of(values, fan_in) or [[]]]
        tasks += values
    return Group(f"reduce {label_of(callback)}", [*parts, *tasks], result=tasks[-1])


@task
async def map_chunks(view: Any, callback: str, chunk_rows: int, arguments: Any) -> Any:
    """Add the tasks of a mapped table to the job, when the number of its rows is known."""
    first = first_parameter(callback)
    chunks = await view.chunks(chunk_rows) or [view.limit(0)]  # An empty result has columns too.
    parts = [create_task(callback, {**arguments, first: chunk}) for chunk in chunks]
    tasks, layer = list(parts), parts
    while len(layer) > 1 or layer is parts:
        layer = [create_task(concatenate, {"parts": some}) for some in lists_of(layer, PARTS_AT_ONCE)]
        tasks += layer
    return await apply(Group(f"map {label_of(callback)}", list(tasks), result=tasks[-1]))


@task
async def reduce_chunks(view: Any, callback: str, chunk_rows: int, fan_in: int, arguments: Any) -> Any:
    """Add the tasks of a reduced table to the job, when the number of its rows is known."""
    return await apply(reduce(callback, await view.chunks(chunk_rows), fan_in=fan_in, **arguments))


@task
async def concatenate(parts: Any) -> Any:
    """The rows of all parts in one table."""
    return await parts[0].union(*parts[1:]).materialize()


def _of_table(
    verb: str, callback: Callback, planner: Callback, view: Referable, sizes: dict[str, int], kwargs: dict[str, Any]
) -> Group:
    """A group with the task that adds the others at run time, because their number depends on the rows."""
    first_parameter(callback)
    planned = create_task(planner, {"view": view, "callback": entry_point(callback), **sizes, "arguments": kwargs})
    return Group(f"{verb} {label_of(callback)}", [planned], result=planned)


def _mapped(group: Group) -> tuple[Sequence[Any], list[Item]]:
    """The tasks of the chunks, and the items to apply together with the reducing tasks."""
    values = [task for task in group.tasks() if task is not group.result]
    return values, [] if group.is_applied or group.group is not None else [group]


def _as_sequence(items: Iterable[Any]) -> Sequence[Any]:
    if isinstance(items, Item):
        raise Invalid(f"the length of the result of {items} is not known yet; map it in a task that receives it")
    return items if isinstance(items, list | tuple) else list(items)


def _chunks(items: Items, size: int) -> Iterable[Any]:
    match items:
        case Chunks():
            return items
        case ObjectRef() | ViewRef():
            return _views(items, size)
        case _:
            return lists_of(_as_sequence(items), size)


def lists_of(values: Sequence[Any], size: int) -> list[list[Any]]:
    return [list(values[start : start + size]) for start in range(0, len(values), size)]


def _views(table: ObjectRef | ViewRef, size: int) -> Iterator[ViewRef]:
    if isinstance(table, ObjectRef) and table.inline is not None:
        for start in range(0, len(table.inline), size):
            yield ViewRef(inline=table.inline.part(start, size))
        return
    view = table if isinstance(table, ViewRef) else ViewRef(table_id=table.table_id)
    if view.limit is None:
        raise Invalid(
            f"the number of rows of table {view.table_id} is not known here; "
            f"map ViewRef(table_id={view.table_id!r}, limit=ROWS)"
        )
    begin = view.offset or 0
    for start in range(begin, begin + view.limit, size):
        yield view.model_copy(update={"offset": start, "limit": min(size, begin + view.limit - start)})


def first_parameter(callback: Callback) -> str:
    """The name of the first parameter; a placeholder if only workers have the function."""
    handler = entry_point(callback)
    try:
        function = getattr(registry.get(handler).function, "__wrapped__", None)
    except UnknownHandler:
        return FIRST_PARAMETER
    first = Signature(function).first_parameter if function is not None else None
    if first is None:
        raise Invalid(f"{handler!r} cannot be mapped: it must be a Python function with a first parameter")
    return first


def label_of(callback: Callback) -> str:
    return entry_point(callback).rpartition(":")[2]
