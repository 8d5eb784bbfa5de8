"""Intersection of geometries, compared with shapely."""

import random
from typing import Any

import pytest
import shapely
from shapely.geometry import mapping, shape

from dagmaster.errors import Invalid
from dagmaster.web import intersection
from dagmaster.web.intersection import intersects, parse_shape

RING = {
    "type": "Polygon",
    "coordinates": [
        [[0, 0], [10, 0], [10, 10], [0, 10], [0, 0]],
        [[2, 2], [8, 2], [8, 8], [2, 8], [2, 2]],
    ],
}


@pytest.mark.parametrize(
    ("geometry", "is_touching"),
    [
        ({"type": "Point", "coordinates": [1, 1]}, True),
        ({"type": "Point", "coordinates": [5, 5]}, False),
        ({"type": "Point", "coordinates": [10, 10]}, True),
        ({"type": "MultiPoint", "coordinates": [[5, 5], [20, 20]]}, False),
        ({"type": "LineString", "coordinates": [[3, 3], [7, 7]]}, False),
        ({"type": "LineString", "coordinates": [[5, 5], [5, 20]]}, True),
        ({"type": "LineString", "coordinates": [[-5, 12], [12, -5]]}, True),
        ({"type": "Polygon", "coordinates": [[[3, 3], [7, 3], [7, 7], [3, 3]]]}, False),
        ({"type": "Polygon", "coordinates": [[[-9, -9], [99, -9], [99, 80], [-9, 80], [-9, -9]]]}, True),
        ({"type": "Polygon", "coordinates": [[[10, 0], [20, 0], [20, 5], [10, 0]]]}, True),
        ({"type": "GeometryCollection", "geometries": [{"type": "Point", "coordinates": [1, 9]}]}, True),
    ],
)
def test_parts_holes_and_borders_are_respected(geometry: Any, is_touching: bool) -> None:
    assert shape(geometry).intersects(shape(RING)) is is_touching, "the library agrees"
    assert intersects(parse_shape(geometry), parse_shape(RING)) is is_touching
    assert intersects(parse_shape(RING), parse_shape(geometry)) is is_touching


def test_segments_far_from_the_other_geometry_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(intersection, "_cross", lambda *points: compared.append(points))
    circle = list(shapely.Point(0, 0).buffer(10, quad_segs=450).exterior.coords)
    square = {"type": "Polygon", "coordinates": [[[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]]]}
    assert not intersects(parse_shape({"type": "LineString", "coordinates": circle}), parse_shape(square))
    assert len(compared) == 0


def test_random_geometries_intersect_as_in_shapely() -> None:
    rng = random.Random(7)
    for _ in range(400):
        first, second = (_random_geometry(rng) for _ in range(2))
        expected = first.intersects(second)
        meets = intersects(parse_shape(mapping(first)), parse_shape(mapping(second)))
        assert meets is expected, f"{first.wkt} and {second.wkt}"


def _random_geometry(rng: random.Random) -> Any:
    points = [(rng.randint(-8, 8), rng.randint(-8, 8)) for _ in range(rng.randint(3, 7))]
    hull = shapely.MultiPoint(points).convex_hull
    return rng.choice([hull, shapely.Point(points[0]), shapely.LineString(points[:2])])


@pytest.mark.parametrize(
    "geometry",
    [
        None,
        {},
        {"type": "Circle", "coordinates": [0, 0]},
        {"type": "Point", "coordinates": [500, 0]},
        {"type": "Point", "coordinates": ["a", 0]},
        {"type": "Polygon", "coordinates": []},
        {"type": "LineString", "coordinates": [[0, 0]]},
        {"type": "MultiPoint", "coordinates": [[0, 0]] * 2001},
    ],
)
def test_an_invalid_geometry_is_refused(geometry: Any) -> None:
    with pytest.raises(Invalid, match="intersects"):
        parse_shape(geometry)
