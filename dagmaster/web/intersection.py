"""Whether two GeoJSON geometries intersect, in the plane of degrees.

The core has no geometry library. Footprints have few vertices, so each segment of one that is near the other is
compared with each such segment of the other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, product
from typing import Any, Final

from dagmaster.errors import Invalid

MAX_POINTS: Final = 2000
MAX_DEPTH: Final = 5

Point = tuple[float, float]
Segment = tuple[Point, Point]
Box = tuple[float, float, float, float]


@dataclass
class Shape:
    """The parts of a geometry. `lines` include the rings of polygons; the first ring of a polygon is the outer one."""

    points: list[Point] = field(default_factory=list)
    lines: list[list[Point]] = field(default_factory=list)
    polygons: list[list[list[Point]]] = field(default_factory=list)

    @property
    def corners(self) -> list[Point]:
        """One point of each part: without a crossing, a part is entirely inside or entirely outside."""
        return [*self.points, *(line[0] for line in self.lines)]

    @cached_property
    def bounds(self) -> Box:
        """West, south, east, north."""
        xs, ys = zip(*self.all_points(), strict=True)
        return min(xs), min(ys), max(xs), max(ys)

    def moved(self, degrees: float) -> "Shape":
        """Shifted in longitude."""

        def move(line: list[Point]) -> list[Point]:
            return [(x + degrees, y) for x, y in line]

        return Shape(
            move(self.points), list(map(move, self.lines)), [list(map(move, rings)) for rings in self.polygons]
        )

    def all_points(self) -> Iterator[Point]:
        yield from self.points
        for line in self.lines:
            yield from line


def parse_shape(geometry: Any, max_points: int | None = MAX_POINTS) -> Shape:
    """Raises Invalid if it is not a GeoJSON geometry."""
    shape = Shape()
    try:
        _add(shape, geometry, 0)
        count = sum(1 for _ in shape.all_points())
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise Invalid("intersects: must be a GeoJSON geometry with coordinates in degrees") from error
    if not count or (max_points is not None and count > max_points):
        raise Invalid(f"intersects: a geometry must have 1 to {MAX_POINTS} points; this one has {count}")
    return shape


def _add(shape: Shape, geometry: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError("too deep")
    kind = geometry["type"]
    if kind == "GeometryCollection":
        for member in geometry["geometries"]:
            _add(shape, member, depth + 1)
        return
    coordinates = geometry["coordinates"]
    match kind:
        case "Point":
            shape.points.append(_point(coordinates))
        case "MultiPoint":
            shape.points += map(_point, coordinates)
        case "LineString":
            shape.lines.append(_line(coordinates))
        case "MultiLineString":
            shape.lines += map(_line, coordinates)
        case "Polygon":
            _add_polygon(shape, coordinates)
        case "MultiPolygon":
            for polygon in coordinates:
                _add_polygon(shape, polygon)
        case _:
            raise ValueError(kind)


def _point(position: Sequence[float]) -> Point:
    x, y = float(position[0]), float(position[1])
    if not (abs(x) <= 360 and abs(y) <= 90):
        raise ValueError("not in degrees")
    return x, y


def _line(positions: Sequence[Sequence[float]]) -> list[Point]:
    line = [_point(position) for position in positions]
    if len(line) < 2:
        raise ValueError("a line has two points or more")
    return line


def _add_polygon(shape: Shape, rings: Sequence[Sequence[Sequence[float]]]) -> None:
    polygon = [_line(ring) for ring in rings]
    if not polygon:
        raise ValueError("a polygon has a ring")
    shape.polygons.append(polygon)
    shape.lines += polygon


def intersects(first: Shape, second: Shape) -> bool:
    """Geometries that only touch intersect."""
    (west, south, east, north), (west2, south2, east2, north2) = first.bounds, second.bounds
    if west > east2 or west2 > east or south > north2 or south2 > north:
        return False
    return (
        any(_is_inside(point, polygon) for point in first.corners for polygon in second.polygons)
        or any(_is_inside(point, polygon) for point in second.corners for polygon in first.polygons)
        or any(_cross(*left, *right) for left, right in product(_near(first, second), _near(second, first)))
    )


def _near(shape: Shape, other: Shape) -> list[Segment]:
    """The segments that may cross one of the other shape, because they overlap its box."""
    west, south, east, north = other.bounds
    return [
        (a, b)
        for a, b in _segments(shape)
        if max(a[0], b[0]) >= west and min(a[0], b[0]) <= east and max(a[1], b[1]) >= south and min(a[1], b[1]) <= north
    ]


def _segments(shape: Shape) -> Iterator[Segment]:
    """Points are segments without length."""
    for point in shape.points:
        yield point, point
    for line in shape.lines:
        yield from pairwise(line)


def _cross(a: Point, b: Point, c: Point, d: Point) -> bool:
    """Whether the segments a-b and c-d have a point in common."""
    if max(a[0], b[0]) < min(c[0], d[0]) or max(c[0], d[0]) < min(a[0], b[0]):
        return False
    if max(a[1], b[1]) < min(c[1], d[1]) or max(c[1], d[1]) < min(a[1], b[1]):
        return False
    return _side(a, b, c) * _side(a, b, d) <= 0 and _side(c, d, a) * _side(c, d, b) <= 0


def _side(a: Point, b: Point, point: Point) -> float:
    """Positive on the left of the line from a to b, negative on the right."""
    return (b[0] - a[0]) * (point[1] - a[1]) - (b[1] - a[1]) * (point[0] - a[0])


def _is_inside(point: Point, polygon: list[list[Point]]) -> bool:
    """Inside the outer ring, and outside all holes."""
    outer, *holes = polygon
    return _is_in_ring(point, outer) and not any(_is_in_ring(point, hole) for hole in holes)


def _is_in_ring(point: Point, ring: list[Point]) -> bool:
    x, y = point
    is_inside = False
    for (x1, y1), (x2, y2) in zip(ring, [*ring[1:], ring[0]], strict=True):
        if (y1 > y) != (y2 > y) and x < (x2 - x1) * (y - y1) / (y2 - y1) + x1:
            is_inside = not is_inside
    return is_inside
