"""The names of flood tiles: what a path says of flood, return period and place."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from string import ascii_letters, digits
from typing import Any, Final

from pydantic import BaseModel

from dagmaster.errors import Invalid
from dagmaster.geo.raster.header import refuse

# As FATHOM delivers its global maps: a folder for each scenario and return period, with a file for each tile.
DEFAULT_PATTERN: Final = (
    "FLOOD_MAP-{resolution}-{offset}-1in{return_period}-{flood_type}-{defence}-DEPTH-{period}/{tile}.tif"
)
MAX_PATTERN: Final = 500
MAX_SCENARIO: Final = 150
RETURN_PERIOD, TILE = "return_period", "tile"
_PLACEHOLDER: Final = re.compile(r"\{([a-z][a-z_]{0,39})\}")
_TILE: Final = re.compile(r"([ns])([0-9]{1,2})([ew])([0-9]{1,3})", re.IGNORECASE)
# Names of scenarios become names of files and ids of items.
_VALUE: Final = ascii_letters + digits + "._-"


class Place(BaseModel, frozen=True):
    """A point of the grid of whole degrees, which tiles and cells are named after."""

    latitude: int
    longitude: int

    @property
    def name(self) -> str:
        """Such as n04w006."""
        north, east = "n" if self.latitude >= 0 else "s", "e" if self.longitude >= 0 else "w"
        return f"{north}{abs(self.latitude):02d}{east}{abs(self.longitude):03d}"

    def cell(self, degrees: int) -> "Place":
        """The south-west corner of the square of this size that it is in."""
        return Place(
            latitude=self.latitude // degrees * degrees,
            longitude=self.longitude // degrees * degrees,
        )


class TileName(BaseModel, frozen=True):
    """`scenario` has all that the name says but return period and tile."""

    scenario: dict[str, str]
    return_period: int
    place: Place


class NamePattern:
    """A path with placeholders. Each takes the characters up to the one that follows it in the pattern.

    So no name can be read in two ways, and no pattern takes long.
    """

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN:
            raise Invalid(f"pattern: has more than {MAX_PATTERN} characters")
        literals, names = _PLACEHOLDER.split(pattern)[::2], _PLACEHOLDER.findall(pattern)
        _check(literals, names)
        self._parts = pattern.count("/") + 1
        values = [_expression(name, literal[:1]) for name, literal in zip(names, literals[1:], strict=True)]
        escaped = [re.escape(literal) for literal in literals]
        self._regex = re.compile("".join(text for pair in zip(escaped, [*values, ""], strict=True) for text in pair))

    def match(self, path: str) -> TileName | None:
        """By the end of the path: the files may be in folders of folders."""
        found = self._regex.fullmatch("/".join(PurePosixPath(path).parts[-self._parts :]))
        if found is None:
            return None
        values = found.groupdict()
        place = parse_place(values.pop(TILE))
        return TileName(return_period=int(values.pop(RETURN_PERIOD)), place=place, scenario=values) if place else None


def _check(literals: Sequence[str], names: Sequence[str]) -> None:
    if any(character in literal for literal in literals for character in "{}"):
        raise Invalid("pattern: a placeholder is a name of small letters in braces, such as {flood_type}")
    missing = [name for name in (RETURN_PERIOD, TILE) if name not in names]
    if missing:
        raise Invalid(f"pattern: must have the placeholder {{{missing[0]}}}")
    if len(set(names)) < len(names):
        raise Invalid("pattern: has a placeholder twice")
    if any(not literal for literal in literals[1:-1]):
        raise Invalid("pattern: two placeholders follow each other without a character between them")


def _expression(name: str, follower: str) -> str:
    """Possessive: what a placeholder has taken it does not give back."""
    if name == RETURN_PERIOD:
        return f"(?P<{name}>[0-9]{{1,6}}+)"
    characters = "".join(re.escape(character) for character in _VALUE if character != follower)
    return f"(?P<{name}>(?=[A-Za-z0-9])[{characters}]++)"


def parse_place(text: str) -> Place | None:
    found = _TILE.fullmatch(text)
    if found is None:
        return None
    north, latitude, east, longitude = found.groups()
    place = Place(
        latitude=int(latitude) if north in "nN" else -int(latitude),
        longitude=int(longitude) if east in "eE" else -int(longitude),
    )
    return place if abs(place.latitude) <= 90 and abs(place.longitude) <= 180 else None


class FloodTile(BaseModel, frozen=True):
    """The files of one tile of one scenario, in the order of the return periods."""

    key: str
    scenario: str
    place: Place
    files: list[str]


class Inventory(BaseModel, frozen=True):
    """`skipped` counts files of other names and of other return periods."""

    tiles: list[FloodTile]
    scenarios: dict[str, dict[str, str]]
    skipped: int


def take_inventory(paths: Sequence[str], pattern: NamePattern, return_periods: Sequence[int]) -> Inventory:
    """Raises Invalid for tiles with a missing file or with two for one return period, with all of them."""
    files: dict[tuple[str, Place], dict[int, list[str]]] = {}
    scenarios: dict[str, dict[str, str]] = {}
    skipped = 0
    for path in paths:
        name = pattern.match(path)
        if name is None or name.return_period not in return_periods:
            skipped += 1
            continue
        scenario = "-".join(name.scenario.values()) or "flood"
        _remember(scenarios, scenario, name.scenario)
        files.setdefault((scenario, name.place), {}).setdefault(name.return_period, []).append(path)
    refuse([problem for key, of_tile in files.items() for problem in _problems(key, of_tile, return_periods)])
    tiles = [
        FloodTile(
            key=f"{scenario} {place.name}",
            scenario=scenario,
            place=place,
            files=[of_tile[period][0] for period in return_periods],
        )
        for (scenario, place), of_tile in sorted(files.items(), key=_order)
    ]
    return Inventory(tiles=tiles, scenarios=scenarios, skipped=skipped)


def _remember(scenarios: dict[str, dict[str, str]], name: str, values: dict[str, str]) -> None:
    if len(name) > MAX_SCENARIO:
        raise Invalid(f"the scenario {name[:40]}... has more than {MAX_SCENARIO} characters; name less of it")
    if scenarios.setdefault(name, values) != values:
        raise Invalid(f"two scenarios would be named {name}; choose a pattern with other placeholders")


def _order(entry: tuple[tuple[str, Place], Any]) -> tuple[str, int, int]:
    scenario, place = entry[0]
    return scenario, place.latitude, place.longitude


def _problems(key: tuple[str, Place], files: dict[int, list[str]], return_periods: Sequence[int]) -> list[str]:
    scenario, place = key
    missing = [f"1in{period}" for period in return_periods if period not in files]
    problems = [f"{place.name} of {scenario} has no file for {', '.join(missing)}"] if missing else []
    twice = [paths for paths in files.values() if len(paths) > 1]
    return problems + [f"{' and '.join(paths)} are the same tile, scenario and return period" for paths in twice]
