"""Every function, aggregate and ranking on every engine: it exists, takes what it should, and leaves NULL as it is."""

from collections.abc import Mapping
from datetime import UTC, date, datetime
from math import e
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest
from data_values import table

from dagmaster.data import DataContext, aggregates, call, col
from dagmaster.data.engine import Limits
from dagmaster.data.functions import AGGREGATES, FUNCTIONS, RANKINGS
from dagmaster.errors import QueryFailed

NOON = datetime(2026, 3, 31, 12, 34, 56, tzinfo=UTC)
ROW: Mapping[str, list[Any]] = {
    "n": [-7],
    "f": [2.5],
    "s": ["Grün, rot"],
    "d": [date(2026, 3, 31)],
    "t": [NOON],
    "a": [[3, 1, 3]],
    "w": [["a", "b"]],
}
# The arguments of each function, and its value.
VALUES: Mapping[str, tuple[tuple[Any, ...], Any]] = {
    "add": ((col("n"), 2), -5),
    "subtract": ((col("n"), 2), -9),
    "multiply": ((col("n"), 2), -14),
    "divide": ((col("n"), 2), -3.5),
    "modulo": ((col("n"), 3), 2),
    "power": ((col("n"), 2), 49.0),
    "negate": ((col("n"),), 7),
    "abs": ((col("n"),), 7),
    "round": ((col("f"), 0), 2.0),
    "floor": ((col("f"),), 2.0),
    "ceil": ((col("f"),), 3.0),
    "sqrt": ((call("multiply", col("f"), 10),), 5.0),
    "exp": ((call("subtract", col("f"), 1.5),), e),
    "log": ((call("divide", col("f"), 2.5),), 0.0),
    "least": ((col("n"), 1), -7),
    "greatest": ((col("n"), 1), 1),
    "equals": ((col("n"), -7), True),
    "not_equals": ((col("n"), -7), False),
    "less": ((col("n"), 0), True),
    "less_or_equals": ((col("n"), -7), True),
    "greater": ((col("n"), 0), False),
    "greater_or_equals": ((col("n"), -7), True),
    "and": ((col("n") < 0, col("f") > 5), False),
    "or": ((col("n") < 0, col("f") > 5), True),
    "not": ((col("n") < 0,), False),
    "is_in": ((col("n"), [-7, 1]), True),
    "is_null": ((col("n"),), False),
    "is_not_null": ((col("n"),), True),
    "fill_null": ((call("null_if", col("n"), -7), 4), 4),
    "coalesce": ((call("null_if", col("n"), -7), 4), 4),
    "null_if": ((col("n"), -7), None),
    "when": ((col("n") > 0, "plus", "minus"), "minus"),
    "concat": ((col("s"), "!"), "Grün, rot!"),
    "length": ((col("s"),), 9),
    "lower": ((col("s"),), "grün, rot"),
    "upper": ((col("s"),), "GRÜN, ROT"),
    "strip": ((call("concat", " ", col("s"), " "),), "Grün, rot"),
    "substring": ((col("s"), 2, 3), "rün"),
    "replace": ((col("s"), "ü", "ue"), "Gruen, rot"),
    "contains": ((col("s"), "rot"), True),
    "starts_with": ((col("s"), "Grü"), True),
    "ends_with": ((col("s"), "blau"), False),
    "matches": ((col("s"), "^Gr.n"), True),
    "split": ((", ", col("s")), ["Grün", "rot"]),
    "year": ((col("d"),), 2026),
    "month": ((col("d"),), 3),
    "day": ((col("d"),), 31),
    "hour": ((col("t"),), 12),
    "minute": ((col("t"),), 34),
    "weekday": ((col("d"),), 2),
    "to_date": ((col("t"),), date(2026, 3, 31)),
    "start_of_month": ((col("d"),), date(2026, 3, 1)),
    "start_of_day": ((col("t"),), datetime(2026, 3, 31, tzinfo=UTC)),
    "add_days": ((col("d"), 1), date(2026, 4, 1)),
    "add_months": ((col("d"), 1), date(2026, 4, 30)),
    "add_seconds": ((col("t"), 4), datetime(2026, 3, 31, 12, 35, tzinfo=UTC)),
    "date_diff": (("day", col("d"), date(2026, 4, 2)), 2),
    "array": ((col("n"), 1), [-7, 1]),
    "array_length": ((col("a"),), 3),
    "array_contains": ((col("a"), 3), True),
    "array_sum": ((col("a"),), 7),
    "array_sort": ((col("a"),), [1, 3, 3]),
    "array_distinct": ((col("a"),), [3, 1]),
    "array_element": ((col("a"), 1), 3),
    "array_join": ((col("w"), "-"), "a-b"),
}


async def test_every_function_computes_what_its_name_says(context: DataContext) -> None:
    assert VALUES.keys() == FUNCTIONS.keys()
    row = await table(context, **ROW)
    [computed] = await row.select(**{name: call(name, *arguments) for name, (arguments, _) in VALUES.items()}).records()
    for name, (_, value) in VALUES.items():
        assert computed[name] == (pytest.approx(value) if isinstance(value, float) else value), name
    some = (await table(context, a=[[1, None, 2], []])).select(n=call("array_sum", col("a")))
    assert await some.data() == {"n": [3, 0]}


async def test_every_aggregate_and_ranking_computes_what_its_name_says(context: DataContext) -> None:
    numbers = await table(context, k=["a", "a", "a", "b"], x=[1, 1, 4, None])
    computed = {
        "sum": ([6, None], aggregates.sum("x")),
        "mean": ([2.0, None], aggregates.mean("x")),
        "min": ([1, None], aggregates.min("x")),
        "max": ([4, None], aggregates.max("x")),
        "median": ([1, None], aggregates.median("x")),
        "std": ([3**0.5, None], aggregates.std("x")),
        "var": ([3.0, None], aggregates.var("x")),
        "count": ([3, 0], aggregates.count("x")),
        "n_unique": ([2, 0], aggregates.n_unique("x")),
    }
    assert computed.keys() == AGGREGATES.keys()
    groups = await numbers.group_by("k").agg(**{name: function for name, (_, function) in computed.items()}).data()
    for name, (values, _) in computed.items():
        assert groups[name] == (pytest.approx(values) if name == "std" else values), name
    ranked = {
        "row_number": ([1, 2, 3, 1], aggregates.row_number()),
        "rank": ([1, 1, 3, 1], aggregates.rank()),
        "dense_rank": ([1, 1, 2, 1], aggregates.dense_rank()),
        "lag": ([None, 1, 1, None], aggregates.lag("x")),
        "lead": ([1, 4, None, None], aggregates.lead("x")),
    }
    assert ranked.keys() == RANKINGS.keys()
    windows = numbers.select(**{name: function.over("k", "x") for name, (_, function) in ranked.items()})
    assert await windows.data() == {name: values for name, (values, _) in ranked.items()}


async def test_steps_that_choose_rename_and_match(context: DataContext) -> None:
    rows = await table(context, x=[1, 1, 2], s=["a", "a", None])
    assert await rows.distinct().data() == {"x": [1, 2], "s": ["a", None]}
    assert await rows.rename({"x": "y", "s": "x"}).limit(1).data() == {"y": [1], "x": ["a"]}
    names = await table(context, id=[2, 1], s=["two", "one"])
    joined = rows.join(names, left_on="x", right_on="id", suffix="_name")
    assert await joined.records() == [
        {"x": 1, "s": "a", "id": 1, "s_name": "one"},
        {"x": 1, "s": "a", "id": 1, "s_name": "one"},
        {"x": 2, "s": None, "id": 2, "s_name": "two"},
    ]


async def test_casts_return_what_python_has(context: DataContext) -> None:
    row = await table(context, t=[NOON], n=[2**62])
    wide = col("n").cast("Decimal(38, 0)")
    [cast] = await row.select(
        t=col("t").cast("DateTime"), d=col("t").cast("Date"), wide=wide * 8, s=col("n").cast("String")
    ).records()
    assert cast == {"t": NOON, "d": NOON.date(), "wide": 2**65, "s": str(2**62)}


async def test_data_frames_are_stored(context: DataContext) -> None:
    expected = {"x": [1, 2], "s": ["a", None]}
    frames = (pd.DataFrame({"x": [1, 2], "s": ["a", None]}), pl.DataFrame(expected), pa.table(expected).to_reader())
    for frame in frames:
        assert await (await context.create_object_from_value(frame)).data() == expected


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        (Limits(memory_bytes=50_000_000), "MEMORY_LIMIT_EXCEEDED"),
        (Limits(seconds=0.1), "TIMEOUT_EXCEEDED|Timeout exceeded"),
    ],
)
async def test_a_query_that_needs_too_much_fails_alone(engine_url: str, limits: Limits, problem: str) -> None:
    async with DataContext(engine_url, limits=limits) as context:
        sql = "SELECT groupArray(number) AS a FROM numbers(100000000) GROUP BY number % 7"
        with pytest.raises(QueryFailed, match=problem):
            await context.run(lambda: context.engine.query(sql, {}))
        # Not within the limit: a busy machine takes longer than 0.1 s for any query.
        small = "SELECT 1 AS n SETTINGS max_execution_time = 60"
        assert (await context.run(lambda: context.engine.query(small, {}))).to_pydict() == {"n": [1]}
