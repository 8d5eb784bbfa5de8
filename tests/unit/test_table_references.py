"""The tables that the parameters of a task reference."""

import orjson
import pytest

from dagmaster.data import col
from dagmaster.data.plans import Filter, Join, Scan
from dagmaster.data.references import reference_to
from dagmaster.model.table_references import has_references, tables_in

JOINED = Filter(
    source=Join(left=Scan(table_id=7), right=Scan(table_id=8), left_on=("x",), right_on=("x",)),
    condition=(col("object_type") == "table_id").node,
)


@pytest.mark.parametrize(
    ("value", "tables"),
    [
        ({"a": [{"object_type": "object", "table_id": 5}], "b": {"object_type": "view", "table_id": "6"}}, {5, 6}),
        ({"view": reference_to(JOINED).model_dump(mode="json")}, {7, 8}),
        ({"object_type": "ship", "table_id": 5}, set()),
        ({"object_type": ["object"], "table_id": 5}, set()),
        ({"object_type": "object", "table_id": "five"}, set()),
        ({"object_type": "object", "table_id": 10**19}, set()),
        ({"table_id": 5}, set()),
        ([1, None, "object_type"], set()),
    ],
)
def test_references_are_found_at_any_depth(value: object, tables: set[int]) -> None:
    assert tables_in(orjson.dumps(value)) == tables


def test_most_json_is_not_parsed() -> None:
    assert not has_references(b'{"x": "object_type is only a word here"}')
    assert tables_in(b"this is no JSON") == frozenset()
