"""Layers of assets for tests."""

from typing import Any

from asset_rows import add_asset
from fleet import rows

from dagmaster.assets import layer_metadata, layers
from dagmaster.assets.projections import ProjectionOutcome
from dagmaster.service.context import ServiceContext
from dagmaster.settings import load_settings
from dagmaster.store.connect import Connection

WRITTEN, UNCHANGED, REMOVED, NOT_APPLICABLE, FAILED = (
    ProjectionOutcome.WRITTEN,
    ProjectionOutcome.UNCHANGED,
    ProjectionOutcome.REMOVED,
    ProjectionOutcome.NOT_APPLICABLE,
    ProjectionOutcome.FAILED,
)
FIELDS: dict[str, Any] = {
    "display_name": "Roads",
    "description": "All roads",
    "attribution": None,
    "keywords": ["roads"],
    "style": {"color": "red"},
    "legend": None,
    "field_metadata": None,
    "min_zoom": 0,
    "max_zoom": 24,
    "default_visible": True,
    "sort_order": 0,
    "thumbnail_url": None,
}


async def describe(conn: Connection, asset_id: str, **changes: Any) -> None:
    await layer_metadata.add_layer(conn, asset_id, None, {**FIELDS, **changes}, actor="ada")


async def add_roads(conn: Connection, dsn: str) -> str:
    """A vector asset with approved version 0 and metadata."""
    await add_asset(dsn, "roads")
    await describe(conn, "roads")
    return "roads"


def outcomes(publication: layers.Publication) -> list[ProjectionOutcome]:
    return [projection.outcome for projection in publication.projections]


async def history(dsn: str, asset_id: str = "roads") -> list[str]:
    events = await rows(
        dsn, "SELECT event_type, actor FROM dagapp.asset_events WHERE asset_id = %s ORDER BY event_id", asset_id
    )
    assert {row["actor"] for row in events} <= {"ada"}
    return [row["event_type"] for row in events]


def decided_by(conn: Connection) -> ServiceContext:
    return ServiceContext(conn, load_settings(), actor="ada")
