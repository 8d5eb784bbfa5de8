"""`map_table`: a function over the chunks of a table, in parallel, and its results in one table."""

from typing import Any

from dagmaster.data import Object, View
from dagmaster.data.references import Chunks
from dagmaster.python.apply_items import Callback, create_task
from dagmaster.python.graphs import Group, Task
from dagmaster.python.map_reduce import first_parameter, label_of, lists_of
from dagmaster.python.tasks import task

CHUNK_ROWS = 10_000
# More parts would make the statement that joins them slow to parse.
PARTS_AT_ONCE = 100


async def map_table(callback: Callback, view: View, chunk_rows: int = CHUNK_ROWS, **kwargs: Any) -> Group:
    """One task per chunk of the view, and tasks that put the tables they return one after the other into an Object.

    The first argument of the callback is the chunk: a View, or a `pyarrow.Table` where it is annotated so. It returns a
    View, an Object or Arrow data. A chunk that is tried again adds nothing twice: only an accepted result is used.
    """
    first = first_parameter(callback)
    chunks = await view.chunks(chunk_rows) or Chunks([view.limit(0)])  # An empty result has columns too.
    parts: list[Task] = [create_task(callback, {**kwargs, first: chunk}) for chunk in chunks]
    tasks, layer = list(parts), parts
    while len(layer) > 1 or layer is parts:
        layer = [create_task(concatenate, {"parts": some}) for some in lists_of(layer, PARTS_AT_ONCE)]
        tasks += layer
    return Group(f"map {label_of(callback)}", list(tasks), result=tasks[-1])


@task
async def concatenate(parts: list[View]) -> Object:
    """The rows of all parts in one table."""
    return await parts[0].union(*parts[1:]).materialize()
