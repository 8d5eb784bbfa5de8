"""Find geographic shapes in inputs and outputs, and test whether they touch a box.

Only degrees are supported. Coordinates outside their range are in another unit, and are left out.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dagmaster.errors import Invalid

MAX_SHAPES: Final = 500
MAX_DEPTH: Final = 12
MAX_VALUES: Final = 20_000
MAX_POINTS: Final = 20_000
MAX_POINTS_OF_LINE: Final = 1_000
DECIMALS: Final = 5

Point = tuple[float, float]
Line = list[Point]
# West, south, east, north. A box across the antimeridian has west > east, or an east beyond 180°.
Box = tuple[float, float, float, float]

_BOX_NAME: Final = re.compile(r"(^|[_:.-])(bbox|bounds|extent|bounding_?box|aoi)$", re.IGNORECASE)
_BOX_KEYS: Final = (
    ("minx", "miny", "maxx", "maxy"),
    ("xmin", "ymin", "xmax", "ymax"),
    ("west", "south", "east", "north"),
    ("left", "bottom", "right", "top"),
    ("minlon", "minlat", "maxlon", "maxlat"),
    ("minlng", "minlat", "maxlng", "maxlat"),
    ("lonmin", "latmin", "lonmax", "latmax"),
)
_POINT_KEYS: Final = (("lon", "lat"), ("lng", "lat"), ("longitude", "latitude"))
# The nesting depth of a geometry's lines, and whether they are closed.
_GEOMETRIES: Final = {
    "Point": (0, False),
    "MultiPoint": (0, False),
    "LineString": (0, False),
    "MultiLineString": (1, False),
    "Polygon": (1, True),
    "MultiPolygon": (2, True),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """`lines` are rings if `is_area`, single points if `is_points`. Longitudes exceed 180° across the antimeridian."""

    path: str
    kind: str
    lines: list[Line]
    west: float
    south: float
    east: float
    north: float
    label: str = ""
    is_area: bool = True
    is_points: bool = False
    state: str = ""  # the state of the node that it belongs to, if any

    def touches(self, box: Box) -> bool:
        return is_touching((self.west, self.south, self.east, self.north), box)

    @property
    def extent(self) -> str:
        """For display: `5.87° E to 15.04° E, 47.27° N to 55.06° N`."""
        east_west = _span(self.west, _turned(self.east), "E", "W")
        return f"{east_west}, {_span(self.south, self.north, 'N', 'S')}"


class Shapes(list[Shape]):
    """In the order of the document. `is_cut` if there were more than may be drawn."""

    is_cut: bool = False

    def with_all(self, others: "Shapes") -> "Shapes":
        return Shapes([*self, *others])

    @property
    def view(self) -> Box | None:
        """West, south, east, north of all shapes, the shorter way around the earth."""
        if not self:
            return None
        west, east = _around([(shape.west, shape.east) for shape in self])
        return west, min(shape.south for shape in self), east, max(shape.north for shape in self)


def shapes_of(value: Any, path: str = "") -> Shapes:
    """All shapes of the value: GeoJSON, boxes, points. `path` is the path of the value itself."""
    search = _Search()
    search.visit(value, path, "", 0)
    return search.shapes


def item_box(item: Any) -> Box | None:
    """The location of a fan-out's item: its `bbox` or `geometry`, or those of the tiles in a batch.

    Called for millions of items, so items without these keys are not searched.
    """
    first = item[0] if isinstance(item, list) and item else item
    if not isinstance(first, dict) or ("bbox" not in first and "geometry" not in first):
        return None
    return shapes_of(item).view


def read_box(value: str | Sequence[float]) -> Box:
    """West, south, east, north, as numbers or a string with commas; raises Invalid."""
    numbers = [_number(part) for part in value.split(",")] if isinstance(value, str) else list(value)
    box = _box(numbers) if len(numbers) == 4 else None
    if box is None:
        raise Invalid(
            f"bbox: {value!r} is not west,south,east,north in degrees, such as 5.9,47.3,15.0,55.1; "
            "longitudes are from -180 to 360, latitudes from -90 to 90"
        )
    return box


def is_touching(box: Box, other: Box) -> bool:
    """Whether the boxes share a point; a common edge is enough."""
    west, south, east, north = _opened(box)
    other_west, other_south, other_east, other_north = _opened(other)
    if north < other_south or other_north < south:
        return False
    return any(west <= other_east + turn and other_west + turn <= east for turn in (-720, -360, 0, 360, 720))


def _opened(box: Box) -> Box:
    west, south, east, north = box
    return west, south, east + 360 if east < west else east, north


@dataclass(slots=True)
class _Search:
    """A bounded search: a result may be large, and most of it is not geographic."""

    shapes: Shapes = field(default_factory=Shapes)
    values: int = 0
    points: int = 0

    def visit(self, value: Any, path: str, name: str, depth: int) -> None:
        self.values += 1
        if self.values > MAX_VALUES or depth > MAX_DEPTH or self.shapes.is_cut:
            return
        if isinstance(value, Mapping):
            self._visit_mapping(value, path, depth)
        elif (box := _box(value)) and _BOX_NAME.search(name):
            self._add_box(path, box)
        elif isinstance(value, list | tuple) and not _is_numbers(value):
            for index, member in enumerate(value):
                self.visit(member, f"{path}[{index}]", name, depth + 1)

    def _visit_mapping(self, value: Mapping[str, Any], path: str, depth: int) -> None:
        if self._add_geojson(value, path, ""):
            return
        if box := _box(_values_of(value, _BOX_KEYS)):
            self._add_box(path, box)
            return
        if point := _point(_values_of(value, _POINT_KEYS)):
            self._add(path, "point", [[point]], is_area=False, is_points=True)
        for name, member in value.items():
            self.visit(member, f"{path}.{name}" if path else str(name), str(name), depth + 1)

    def _add_geojson(self, value: Mapping[str, Any], path: str, label: str, depth: int = 0) -> bool:
        """Whether the value is GeoJSON, drawn or not."""
        kind = value.get("type")
        if depth > MAX_DEPTH or not isinstance(kind, str):
            return False
        if kind == "Feature" and isinstance(value.get("geometry"), Mapping):
            self._add_geojson(value["geometry"], path, _label(value), depth + 1)
            return True
        members = {"FeatureCollection": "features", "GeometryCollection": "geometries"}.get(kind, "")
        if isinstance(value.get(members), list):
            for index, member in enumerate(value[members]):
                if isinstance(member, Mapping) and not self.shapes.is_cut:
                    self._add_geojson(member, f"{path}.{members}[{index}]".lstrip("."), label, depth + 1)
            return True
        if kind not in _GEOMETRIES or not isinstance(value.get("coordinates"), list):
            return False
        self._add_geometry(kind, value["coordinates"], path, label)
        return True

    def _add_geometry(self, kind: str, coordinates: Any, path: str, label: str) -> None:
        depth, is_area = _GEOMETRIES[kind]
        is_points = kind in ("Point", "MultiPoint")
        coordinates = [coordinates] if kind == "Point" else coordinates
        lines = [line for points in _lines(coordinates, depth) if (line := _line(points))]
        if is_points:
            lines = [[point] for line in lines for point in line]
        self._add(path, kind, lines, label=label, is_area=is_area, is_points=is_points)

    def _add_box(self, path: str, box: Box) -> None:
        west, south, east, north = _opened(box)
        self._add(path, "box", [[(west, south), (east, south), (east, north), (west, north), (west, south)]])

    def _add(self, path: str, kind: str, lines: list[Line], **details: Any) -> None:
        size = sum(map(len, lines))
        if not size:
            return
        if len(self.shapes) >= MAX_SHAPES or self.points + size > MAX_POINTS:
            self.shapes.is_cut = True
            return
        self.points += size
        west, east = _around([(min(x for x, _ in line), max(x for x, _ in line)) for line in lines])
        heights = [y for line in lines for _, y in line]
        self.shapes.append(Shape(path or "value", kind, lines, west, min(heights), east, max(heights), **details))


def _lines(coordinates: Any, depth: int) -> Iterator[Any]:
    if not isinstance(coordinates, list):
        return
    if depth == 0:
        yield coordinates
        return
    for inner in coordinates:
        yield from _lines(inner, depth - 1)


def _line(points: list[Any]) -> Line:
    """Thin out long lines, keeping the last point. Empty if a point is invalid."""
    step = math.ceil(len(points) / MAX_POINTS_OF_LINE)
    sampled = points[::step] if step < 2 else [*points[::step], points[-1]]
    line = [_point(point) for point in sampled]
    return [point for point in line if point] if all(line) else []


def _point(value: Any) -> Point | None:
    if not isinstance(value, list | tuple) or not 2 <= len(value) <= 4 or not _is_numbers(value):
        return None
    longitude, latitude = value[:2]
    if not (-180 <= longitude <= 360 and -90 <= latitude <= 90):
        return None
    return round(longitude, DECIMALS), round(latitude, DECIMALS)


def _box(value: Any) -> Box | None:
    """Four numbers, or six with heights, as a list or as a string with commas."""
    if isinstance(value, str) and value.count(",") in (3, 5) and len(value) < 200:
        value = [_number(part) for part in value.split(",")]
    if not isinstance(value, list | tuple) or len(value) not in (4, 6) or not _is_numbers(value):
        return None
    half = len(value) // 2
    south_west, north_east = _point(value[:2]), _point(value[half : half + 2])
    if south_west is None or north_east is None or south_west[1] > north_east[1]:
        return None
    return *south_west, *north_east


def _values_of(value: Mapping[str, Any], names: Iterable[tuple[str, ...]]) -> list[Any] | None:
    """The values under the first of these groups of keys. Wide mappings are neither points nor boxes."""
    known = {str(key).lower().replace("_", ""): member for key, member in value.items()} if len(value) <= 50 else {}
    return next(([known[key] for key in keys] for keys in names if all(key in known for key in keys)), None)


def _around(intervals: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """The shortest range of longitudes that contains all intervals; it starts between -180 and 180."""
    turned = sorted((_turned(west), _turned(west) + min(east - west, 360)) for west, east in intervals)
    west, east = turned[0]
    widest, start, end = 0.0, west, east
    for next_west, next_east in turned[1:]:
        if next_west - east > widest:
            widest, start, end = next_west - east, next_west, east + 360
        east = max(east, next_east)
    # The gap from the last interval around to the first, which the sorted order does not show.
    return (west, east) if west + 360 - east >= widest else (start, max(end, east))


def _turned(longitude: float) -> float:
    return longitude if -180 <= longitude <= 180 else (longitude + 180) % 360 - 180


def _span(start: float, end: float, plus: str, minus: str) -> str:
    first, last = (f"{abs(degree):.5g}° {plus if degree >= 0 else minus}" for degree in (start, end))
    return first if first == last else f"{first} to {last}"


def _label(feature: Mapping[str, Any]) -> str:
    properties = feature.get("properties")
    named = properties.get("name") if isinstance(properties, Mapping) else None
    return str(named or feature.get("id") or "")[:80]


def _is_numbers(value: Sequence[Any]) -> bool:
    return bool(value) and all(
        isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number) for number in value
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
