"""Built-in handlers that workers load only on request: they need an extra, or decide on assets."""

from collections.abc import Iterable, Mapping
from typing import Final

# By prefix of the handler's name: the module, and the extra that it needs.
_RASTER: Final = ("dagmaster.handlers.raster", "geo")
_CATALOGUE: Final = ("dagmaster.handlers.catalogue", "geo")
_DECISIONS: Final = ("dagmaster.asset_handlers", None)
OPTIONAL_HANDLERS: Final[Mapping[str, tuple[str, str | None]]] = {
    "raster.": _RASTER,
    "raster_": _RASTER,
    "create_cog": _RASTER,
    "fathom_": _RASTER,
    "extract_stac_metadata": _RASTER,
    "finalize": _RASTER,
    "list_raster_files": _RASTER,
    "stac_catalog_container": _RASTER,
    "stats_zonal": _RASTER,
    "vector_": ("dagmaster.handlers.vector", "geo"),
    "list_stac_versions": _CATALOGUE,
    "rebuild_stac": _CATALOGUE,
    "repair_stac_items": _CATALOGUE,
    "trigger_approval": _DECISIONS,
    "approve_dataset": _DECISIONS,
    "reject_dataset": _DECISIONS,
    "promote_to_external": _DECISIONS,
    "unpublish_": _DECISIONS,
    "sync_pgstac": _DECISIONS,
    "export_stac_geoparquet": ("dagmaster.asset_handlers.stac_geoparquet", "stac"),
    "ml_": ("dagmaster.handlers.ml", "ml"),
    "h3_": ("dagmaster.handlers.hexagons", "geo"),
}


def extra_of(module: str) -> str | None:
    """The extra that a module of handlers needs, or None."""
    return dict(OPTIONAL_HANDLERS.values()).get(module)


def how_to_load(name: str, known: Iterable[str]) -> str | None:
    """How to load a missing built-in handler; None for other handlers, and if its module is loaded."""
    for prefix, (module, extra) in OPTIONAL_HANDLERS.items():
        if name.startswith(prefix) and not any(other.startswith(prefix) for other in known):
            install = f"run `pip install 'dagmaster[{extra}]'` and " if extra is not None else ""
            return f"{install}load {module} with --handlers or the setting 'handlers'"
    return None
