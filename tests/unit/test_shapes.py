"""Shapes are found at any depth, and nothing else is mistaken for one."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.errors import Invalid
from dagmaster.model import shapes as shape_search
from dagmaster.model.shapes import MAX_SHAPES, Box, is_touching, item_box, read_box, shapes_of

RING = [[5, 47], [15, 47], [15, 55], [5, 55], [5, 47]]


def polygon(ring: list[list[float]] = RING) -> dict[str, Any]:  # type: ignore[assignment]
    return {"type": "Polygon", "coordinates": [ring]}


@pytest.mark.parametrize(
    "value",
    [
        {"area": {"bbox": [5, 47, 15, 55]}},
        {"area": {"bbox": [5, 47, 0, 15, 55, 1000]}},
        {"area": {"bbox": "5, 47, 15, 55"}},
        {"area": {"minx": 5, "miny": 47, "maxx": 15, "maxy": 55}},
        {"area": {"west": 5, "south": 47, "east": 15, "north": 55}},
        {"area": {"min_lon": 5, "min_lat": 47, "max_lon": 15, "max_lat": 55}},
        {"area": polygon()},
        {"area": {"type": "Feature", "geometry": polygon(), "properties": {}}},
        {"area": {"type": "LineString", "coordinates": RING}},
        {"area": {"type": "MultiPolygon", "coordinates": [[RING]]}},
    ],
)
def test_a_shape_is_found_with_its_path_and_extent(value: Any) -> None:
    [shape] = shapes_of(value, "inputs")
    assert shape.path.startswith("inputs.area")
    assert (shape.west, shape.south, shape.east, shape.north) == (5, 47, 15, 55)
    assert shape.extent == "5° E to 15° E, 47° N to 55° N"


def test_every_feature_of_a_collection_is_a_named_shape() -> None:
    features = [
        {"type": "Feature", "properties": {"name": "Here"}, "geometry": polygon()},
        {"type": "Feature", "id": 7, "properties": None, "geometry": {"type": "Point", "coordinates": [1, 2, 3]}},
        {"type": "Feature", "geometry": None},
    ]
    shapes = shapes_of({"out": {"type": "FeatureCollection", "features": features}})
    assert [(shape.path, shape.label, shape.is_points) for shape in shapes] == [
        ("out.features[0]", "Here", False),
        ("out.features[1]", "7", True),
    ]


def test_lists_of_boxes_and_keyed_places_are_found() -> None:
    shapes = shapes_of({"extent": {"spatial": {"bbox": [[0, 0, 1, 1], [2, 2, 3, 3]]}}, "at": {"lon": 8, "lat": 50}})
    assert [shape.path for shape in shapes] == ["extent.spatial.bbox[0]", "extent.spatial.bbox[1]", "at"]


@pytest.mark.parametrize(
    "value",
    [
        {"numbers": [1, 2, 3, 4]},
        {"bbox": [500000, 4649776, 509999, 4659999]},
        {"bbox": [1, 2, 3]},
        {"bbox": [0, 50, 1, 40]},
        {"bbox": [0, 0, math.nan, 1]},
        {"bbox": [True, False, True, True]},
        {"bbox": "north, south, east, west"},
        {"type": "Polygon"},
        {"type": "Polygon", "coordinates": "none"},
        {"type": "Polygon", "coordinates": [[["a", "b"]]]},
        {"type": "Polygon", "coordinates": [5, [6]]},
        {"type": "Feature", "geometry": 3},
        {"type": ["Point"], "coordinates": [1, 2]},
        {"left": 1, "bottom": "x", "right": 3, "top": 4},
        "5,47,15,55",
        None,
    ],
)
def test_values_that_are_not_places_are_not_drawn(value: Any) -> None:
    assert shapes_of(value) == []


def test_a_box_across_the_antimeridian_is_one_narrow_box() -> None:
    [shape] = shapes = shapes_of({"bbox": [170, -20, -170, -10]})
    assert (shape.west, shape.east) == (170, 190)
    assert shape.extent == "170° E to 170° W, 20° S to 10° S"
    assert shapes.view == (170, -20, 190, -10)


def test_parts_on_both_sides_of_the_antimeridian_are_shown_together() -> None:
    parts = [[[[175, 0], [180, 0], [180, 5], [175, 0]]], [[[-180, 0], [-170, 0], [-170, 5], [-180, 0]]]]
    [shape] = shapes_of({"type": "MultiPolygon", "coordinates": parts})
    assert (shape.west, shape.east) == (175, 190)
    two = shapes_of([{"lon": 179, "lat": 0}, {"lon": -178, "lat": 0}])
    assert two.view == (179, 0, 182, 0)


def test_a_global_extent_stays_global() -> None:
    assert shapes_of({"bbox": [-180, -90, 180, 90]}).view == (-180, -90, 180, 90)


def test_the_number_and_length_of_shapes_are_limited_with_a_note() -> None:
    shapes = shapes_of([{"bbox": [0, 0, 1, 1]}] * (MAX_SHAPES + 5))
    assert len(shapes) == MAX_SHAPES and shapes.is_cut
    ring = [[math.cos(turn / 5000), math.sin(turn / 5000)] for turn in range(31416)]
    [long] = shapes_of(polygon([*ring, ring[0]]))
    assert len(long.lines[0]) <= shape_search.MAX_POINTS_OF_LINE + 1
    assert long.lines[0][-1] == (1, 0)


def test_deep_values_are_not_followed_forever() -> None:
    deep: Any = {"bbox": [0, 0, 1, 1]}
    for _ in range(5000):
        deep = {"in": deep}
    collection: Any = {"type": "GeometryCollection", "geometries": []}
    for _ in range(5000):
        collection = {"type": "GeometryCollection", "geometries": [collection]}
    assert shapes_of(deep) == [] and shapes_of(collection) == []


@pytest.mark.parametrize(
    ("box", "other", "is_one"),
    [
        ((0, 0, 1, 1), (1, 1, 2, 2), True),
        ((0, 0, 1, 1), (1.1, 0, 2, 1), False),
        ((0, 0, 1, 1), (0, 1.1, 1, 2), False),
        ((170, 0, -170, 1), (-175, 0, -174, 1), True),
        ((170, 0, 190, 1), (-175, 0, -174, 1), True),
        ((170, 0, -170, 1), (0, 0, 10, 1), False),
        ((350, 0, 355, 1), (-8, 0, -7, 1), True),
        ((-180, -90, 180, 90), (12, 3, 13, 4), True),
    ],
)
def test_boxes_intersect_around_the_globe(box: Box, other: Box, is_one: bool) -> None:
    assert is_touching(box, other) is is_touching(other, box) is is_one


def test_the_item_of_a_fan_out_has_its_named_box() -> None:
    assert item_box({"row": 1, "bbox": [5, 47, 15, 55]}) == (5, 47, 15, 55)
    assert item_box({"geometry": polygon()}) == (5, 47, 15, 55)
    assert item_box([{"bbox": [0, 0, 1, 1]}, {"bbox": [3, 2, 4, 3]}]) == (0, 0, 4, 3)
    for item in (7, "5,47,15,55", [], [5, 47, 15, 55], {"deep": {"bbox": [5, 47, 15, 55]}}, {"bbox": "nowhere"}, None):
        assert item_box(item) is None


@pytest.mark.parametrize(
    "text", ["", "5,47,15", "5,47,15,a", "5,55,15,47", "500000,4649776,509999,4659999", "0,0,0,1,1,1"]
)
def test_an_invalid_box_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(Invalid, match=r"such as 5\.9,47\.3,15\.0,55\.1"):
        read_box(text)
    assert read_box("170, -20, -170, -10") == read_box([170, -20, -170, -10]) == (170, -20, -170, -10)


json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(
            st.sampled_from(
                ["type", "bbox", "coordinates", "geometry", "features", "geometries", "lon", "lat", "minx"]
            ),
            inner | st.sampled_from(["Point", "Polygon", "MultiPolygon", "Feature", "FeatureCollection"]),
            max_size=5,
        )
    ),
    max_leaves=30,
)


@given(json)
def test_no_input_breaks_the_search(value: Any) -> None:
    for shape in shapes_of(value):
        assert -180 <= shape.west <= shape.east <= 540
        assert -90 <= shape.south <= shape.north <= 90
        assert shape.extent
