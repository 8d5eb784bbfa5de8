"""Handlers of dagmaster that workers load only if they are told to, because they need an extra."""

from collections.abc import Iterable
from typing import Final

# By the beginning of their names: the module and the extra that it needs.
_RASTER: Final = ("dagmaster.handlers.raster", "geo")
OPTIONAL_HANDLERS: Final = {
    "raster.": _RASTER,
    "raster_": _RASTER,
    "create_cog": _RASTER,
    "extract_stac_metadata": _RASTER,
    "finalize": _RASTER,
    "stats_zonal": _RASTER,
    "vector_": ("dagmaster.handlers.vector", "geo"),
    "h3_": ("dagmaster.handlers.hexagons", "geo"),
}


def extra_of(module: str) -> str | None:
    """The extra that a module of handlers needs."""
    return dict(OPTIONAL_HANDLERS.values()).get(module)


def how_to_load(name: str, known: Iterable[str]) -> str | None:
    """What to do where a handler of this name is not loaded; None for handlers of others, and where its module is."""
    for beginning, (module, extra) in OPTIONAL_HANDLERS.items():
        if name.startswith(beginning) and not any(other.startswith(beginning) for other in known):
            return f"run `pip install 'dagmaster[{extra}]'` and load {module} with --handlers or the setting 'handlers'"
    return None
