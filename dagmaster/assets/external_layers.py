"""The layers in the external database: the expected state, sent while nothing is locked here.

The state is read, and gets its revision, while the asset is locked. The external database keeps the latest revision of
each asset, so that of two concurrent states the later one wins, in whatever order they arrive.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dagmaster.assets.layer_projections import record_projections
from dagmaster.assets.projections import Projection, ProjectionName, ProjectionOutcome
from dagmaster.errors import Conflict, Invalid, Unavailable
from dagmaster.store.assets import lock_asset
from dagmaster.store.connect import Connection
from dagmaster.store.layer_catalog import OutcomeUnknown, write_externally
from dagmaster.store.layers import (
    LayerRow,
    confirm_external_layer,
    expect_external_layer,
    withdraw_external_layer,
)

MISSING_SETTING: Final = (
    "there is no external database; set external_b2c_connection_string (EXTERNAL_B2C_CONNECTION_STRING) on the server"
)


@dataclass(frozen=True, slots=True)
class ExternalState:
    """The row of the external catalogue that an asset should have, or None.

    `ordinal` is the version it shows; `is_external` is false for an unpublished layer.
    """

    asset_id: str
    revision: datetime
    entry: Mapping[str, Any] | None
    ordinal: int | None
    is_external: bool

    def projection(self, outcome: ProjectionOutcome) -> Projection:
        target = self.entry["table_name"] if self.entry is not None else None
        return Projection(ProjectionName.EXTERNAL_CATALOG, outcome, target)


def is_expected(layer: LayerRow) -> bool:
    """Whether the external database has the layer, should have it, or has not confirmed its removal."""
    return layer["is_external"] or layer["external_pending"] is not None


async def expect(
    conn: Connection,
    asset_id: str,
    entry: Mapping[str, Any] | None,
    ordinal: int | None = None,
    *,
    is_external: bool = True,
) -> ExternalState:
    """Assign the revision of the state. The asset is locked until the caller's transaction ends; send it afterwards."""
    revision = await expect_external_layer(conn, asset_id, is_external=is_external)
    return ExternalState(asset_id, revision, entry, ordinal, is_external)


async def send(conn: Connection, state: ExternalState, *, actor: str | None, external_dsn: str | None) -> Projection:
    """Send the state and return the outcome. A failed state is still expected, and the next refresh sends it again."""
    try:
        return await deliver(conn, state, actor=actor, external_dsn=external_dsn)
    except (Conflict, Invalid, Unavailable) as error:
        return Projection(ProjectionName.EXTERNAL_CATALOG, ProjectionOutcome.FAILED, error=str(error))


async def deliver(conn: Connection, state: ExternalState, *, actor: str | None, external_dsn: str | None) -> Projection:
    """Like `send`, but raises Conflict, Invalid, or Unavailable."""
    if external_dsn is None:
        raise Conflict(MISSING_SETTING)
    is_changed = await write_externally(external_dsn, state.asset_id, state.revision, state.entry)
    if is_changed is None:
        return state.projection(ProjectionOutcome.UNCHANGED)
    written = ProjectionOutcome.WRITTEN if state.entry is not None else ProjectionOutcome.REMOVED
    projection = state.projection(written if is_changed else ProjectionOutcome.UNCHANGED)
    async with conn.transaction():
        asset = await lock_asset(conn, state.asset_id)
        await confirm_external_layer(
            conn, state.asset_id, state.revision, is_there=state.entry is not None, is_changed=is_changed
        )
        if is_changed:
            event_type = "metadata_published" if state.is_external else "metadata_unpublished"
            await record_projections(conn, asset, event_type, [projection], state.ordinal, actor)
    return projection


async def withdraw(conn: Connection, state: ExternalState, before: LayerRow, error: Exception) -> None:
    """Restore the previous expectation: the external database did not accept this state."""
    is_settled = before["external_pending"] is None and not isinstance(error, OutcomeUnknown)
    await withdraw_external_layer(
        conn, state.asset_id, state.revision, is_external=before["is_external"], is_settled=is_settled
    )
