"""Arrow arrays of plain values equal those of Arrow itself."""

import subprocess
import sys
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.data.arrow import plain_array, row_numbers

INTEGERS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    *(
        st.lists(st.none() | kind, min_size=1, max_size=40)
        for kind in (INTEGERS, st.booleans(), st.floats(allow_nan=False), st.text(alphabet="aä😀\0"))
    )
)


@given(VALUES)
def test_the_array_equals_that_of_arrow(values: list[Any]) -> None:
    expected = pa.array(values)
    array = plain_array(values)
    if array is None:
        assert set(values) == {None}
    else:
        array.validate(full=True)
        assert array.equals(expected)
        assert array.type == expected.type


@pytest.mark.parametrize(
    "values",
    [
        [],
        [None],
        [1, 2.5],
        [2**63],
        ["\ud800"],
        [b"x"],
        [date(2026, 1, 1)],
        [[1]],
        [{"a": 1}],
        [1] * 100_001,
        [True, 1],
    ],
)
def test_other_values_are_left_to_arrow(values: list[Any]) -> None:
    assert plain_array(values) is None


def test_rows_can_be_numbered_from_any_number() -> None:
    assert row_numbers(2**40, 3).equals(pa.array([2**40, 2**40 + 1, 2**40 + 2], pa.uint64()))
    assert len(row_numbers(0, 0)) == 0


SMALL = """
import sys
import dagmaster.fleet
from dagmaster.data.arrow import clickhouse_type, table_from_value
from dagmaster.data.inline import decode_rows, encode_rows
from dagmaster.data.objects import DataContext
import dagmaster.data.service_engine

table = table_from_value([{"x": 1, "s": "a"}, {"x": None, "s": "b"}])
rows = encode_rows(table, {name: clickhouse_type(table[name], name) for name in table.column_names})
assert decode_rows(rows).to_pydict() == {"x": [1, None], "s": ["a", "b"]}
print(*sorted({"pandas", "chdb", "httpx", "pyarrow.parquet", "pyarrow.compute"} & set(sys.modules)))
"""


def test_a_worker_imports_no_library_that_small_tables_do_not_need() -> None:
    ended = subprocess.run([sys.executable, "-c", SMALL], capture_output=True, text=True, check=True)
    assert ended.stdout == "\n"
