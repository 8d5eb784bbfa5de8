"""Random plans have the same results as plain Python."""

import asyncio
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagmaster.data import DataContext, View, col

NUMBERS = st.integers(-5, 5) | st.none()
ROWS = st.lists(st.tuples(NUMBERS, st.sampled_from(["a", "b", "c"])), max_size=12)
Row = tuple[int | None, str]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("where"), st.integers(-5, 5)),
        st.tuples(st.just("limit"), st.integers(0, 6)),
        st.tuples(st.just("offset"), st.integers(0, 4)),
        st.tuples(st.just("order"), st.booleans()),
        st.tuples(st.just("add"), st.integers(-3, 3)),
        st.tuples(st.just("distinct"), st.none()),
        st.tuples(st.just("double"), st.none()),
    ),
    max_size=6,
)


def computed(rows: list[Row], step: tuple[str, Any]) -> list[Row]:
    match step:
        case "where", least:
            return [row for row in rows if row[0] is not None and row[0] > least]
        case "limit", count:
            return rows[:count]
        case "offset", count:
            return rows[count:]
        case "order", is_down:
            known = sorted((row for row in rows if row[0] is not None), key=lambda row: -row[0] if is_down else row[0])
            return [*known, *(row for row in rows if row[0] is None)]
        case "add", number:
            return [(None if x is None else x + number, g) for x, g in rows]
        case "distinct", _:
            return _first_of_each(rows)
        case _:
            return rows + rows


def _first_of_each(rows: list[Row]) -> list[Row]:
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row[1], row)
    return list(first.values())


def planned(view: View, step: tuple[str, Any]) -> View:
    match step:
        case "where", least:
            return view.where(col("x") > least)
        case "limit", count:
            return view.limit(count)
        case "offset", count:
            return view.offset(count)
        case "order", is_down:
            return view.order_by(col("x").desc() if is_down else "x")
        case "add", number:
            return view.with_columns(x=col("x") + number)
        case "distinct", _:
            return view.distinct("g")
        case _:
            return view.union(view)


@pytest.mark.parametrize("engine_url", ["chdb"], indirect=True)
@settings(max_examples=60)
@given(ROWS, STEPS)
def test_random_plans_give_the_same_results_as_python(
    engine_url: str, rows: list[Row], steps: list[tuple[str, Any]]
) -> None:
    async def run() -> tuple[list[Any], int, list[Any]]:
        async with DataContext(engine_url) as context:
            source = pa.table(
                {"x": pa.array([x for x, _ in rows], pa.int64()), "g": pa.array([g for _, g in rows], pa.string())}
            )
            view: View = await context.create_object_from_value(source)
            for step in steps:
                view = planned(view, step)
            found = [tuple(row.values()) for row in await view.records()]
            stored = await view.materialize()
            return found, await view.count(), [tuple(row.values()) for row in await stored.records()]

    expected = rows
    for step in steps:
        expected = computed(expected, step)
    assert asyncio.run(run()) == (expected, len(expected), expected)
