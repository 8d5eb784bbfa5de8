"""Layers are published to the catalogue and to STAC, and outside only when they are public."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from asset_rows import add_asset, add_version
from fleet import fleet, rows

from dagmaster.assets import layer_metadata, layers
from dagmaster.assets.external_layers import expect, send
from dagmaster.assets.projections import ProjectionOutcome, catalog_entry
from dagmaster.errors import Conflict, Unavailable, UnknownAsset, UnknownLayer
from dagmaster.model.asset import DataType, ExposureMode
from dagmaster.service.asset_contract import Approve, DeleteAsset, DeleteVersion, Expose
from dagmaster.service.assets import decide
from dagmaster.service.context import ServiceContext
from dagmaster.settings import load_settings
from dagmaster.store.asset_versions import get_version_row
from dagmaster.store.connect import Connection, opened
from dagmaster.store.embedded import EmbeddedServer
from dagmaster.store.external_catalog import OutcomeUnknown
from dagmaster.store.layer_catalog import list_catalog
from dagmaster.store.layers import get_layer

WRITTEN, UNCHANGED, REMOVED, NOT_APPLICABLE, FAILED = (
    ProjectionOutcome.WRITTEN,
    ProjectionOutcome.UNCHANGED,
    ProjectionOutcome.REMOVED,
    ProjectionOutcome.NOT_APPLICABLE,
    ProjectionOutcome.FAILED,
)
AWAY = "postgresql://writer:hunter2@127.0.0.1:1/outside"
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


@pytest.fixture
async def roads(conn: Connection, dsn: str) -> AsyncIterator[str]:
    """A vector whose version 0 is approved, with metadata."""
    await add_asset(dsn, "roads")
    await describe(conn, "roads")
    yield "roads"


def outcomes(publication: layers.Publication) -> list[ProjectionOutcome]:
    return [projection.outcome for projection in publication.projections]


async def history(dsn: str, asset_id: str = "roads") -> list[str]:
    found = await rows(
        dsn, "SELECT event_type, actor FROM dagapp.asset_events WHERE asset_id = %s ORDER BY event_id", asset_id
    )
    assert {row["actor"] for row in found} <= {"ada"}
    return [row["event_type"] for row in found]


async def collection(dsn: str, collection_id: str) -> dict[str, Any] | None:
    query = "SELECT content FROM dagapp.stac_collections WHERE collection_id = %s"
    found = await rows(dsn, query, collection_id)
    return found[0]["content"] if found else None


# Metadata


async def test_metadata_is_of_an_asset_that_exists_and_of_its_data_type(conn: Connection, dsn: str) -> None:
    with pytest.raises(UnknownAsset):
        await describe(conn, "nothing")
    await add_asset(dsn, "roads")
    with pytest.raises(Conflict, match="is a vector, not a raster"):
        await layer_metadata.add_layer(conn, "roads", DataType.RASTER, FIELDS, actor="ada")
    await layer_metadata.add_layer(conn, "roads", DataType.VECTOR, FIELDS, actor="ada")
    with pytest.raises(Conflict, match="has layer metadata already"):
        await describe(conn, "roads")
    await rows(dsn, "UPDATE dagapp.geospatial_assets SET deleted_at = now()")
    with pytest.raises(UnknownAsset, match="deleted"):
        await layer_metadata.replace_layer(conn, "roads", 1, None, FIELDS, actor="ada")


async def test_who_read_an_older_version_does_not_overwrite_a_newer_one(conn: Connection, roads: str) -> None:
    changed = await layer_metadata.replace_layer(
        conn, roads, 1, None, {**FIELDS, "display_name": "Streets"}, actor="ada"
    )
    assert (changed["display_name"], changed["version"]) == ("Streets", 2)
    with pytest.raises(Conflict, match="at version 2, not 1"):
        await layer_metadata.replace_layer(conn, roads, 1, None, FIELDS, actor="bob")
    assert (await get_layer(conn, roads))["display_name"] == "Streets"


async def test_metadata_of_a_published_layer_is_not_removed(conn: Connection, roads: str, dsn: str) -> None:
    await layers.publish(conn, roads, actor="ada")
    with pytest.raises(Conflict, match="unpublish it first"):
        await layer_metadata.remove_layer(conn, roads, actor="ada")
    await layers.unpublish(conn, roads, actor="ada")
    await layer_metadata.remove_layer(conn, roads, actor="ada")
    with pytest.raises(UnknownLayer):
        await get_layer(conn, roads)
    noted = await rows(
        dsn, "SELECT event_data FROM dagapp.dag_job_events WHERE event_type = 'command' ORDER BY event_id"
    )
    assert [row["event_data"]["command"] for row in noted] == ["metadata.add", "metadata.remove"]


# Publishing


async def test_a_published_layer_is_in_the_catalogue_and_in_stac(conn: Connection, roads: str, dsn: str) -> None:
    publication = await layers.publish(conn, roads, actor="ada")
    assert outcomes(publication) == [WRITTEN, WRITTEN]
    assert (publication.version_ordinal, publication.published_at is not None) == (0, True)
    [entry] = await list_catalog(conn, limit=10)
    assert (entry["table_name"], entry["source_asset_id"], entry["style"]) == ("geo.roads", roads, {"color": "red"})
    described = await collection(dsn, roads)
    assert described is not None and described["title"] == "Roads"
    assert await history(dsn) == ["metadata_published"]


async def test_publishing_twice_changes_nothing(conn: Connection, roads: str, dsn: str) -> None:
    first = await layers.publish(conn, roads, actor="ada")
    second = await layers.publish(conn, roads, actor="ada")
    assert outcomes(second) == [UNCHANGED, UNCHANGED]
    assert second.published_at == first.published_at
    assert await history(dsn) == ["metadata_published"]


async def test_a_change_is_shown_when_it_is_published(conn: Connection, roads: str) -> None:
    first = await layers.publish(conn, roads, actor="ada")
    await layer_metadata.replace_layer(conn, roads, 1, None, {**FIELDS, "display_name": "Streets"}, actor="ada")
    assert [entry["display_name"] for entry in await list_catalog(conn, limit=10)] == ["Roads"]
    second = await layers.publish(conn, roads, actor="ada")
    assert outcomes(second) == [WRITTEN, WRITTEN]
    assert first.published_at is not None and second.published_at is not None
    assert second.published_at > first.published_at
    assert [entry["display_name"] for entry in await list_catalog(conn, limit=10)] == ["Streets"]


async def test_nothing_is_published_before_a_version_is_approved(conn: Connection, dsn: str) -> None:
    await add_asset(dsn, "draft", latest=None)
    await describe(conn, "draft")
    with pytest.raises(Conflict, match="no version of asset 'draft' is approved"):
        await layers.publish(conn, "draft", actor="ada")
    assert await list_catalog(conn, limit=10) == []


async def test_a_raster_without_a_table_is_only_in_stac(conn: Connection, dsn: str) -> None:
    await rows(
        dsn,
        """INSERT INTO dagapp.stac_collections (collection_id, content)
           VALUES ('imagery', '{"id": "imagery", "description": "From the sky", "summaries": {"gsd": [10]}}')""",
    )
    await add_asset(dsn, "image", data_type="raster", table_name=None, stac_collection_id="imagery")
    await describe(conn, "image")
    assert outcomes(await layers.publish(conn, "image", actor="ada")) == [WRITTEN, NOT_APPLICABLE]
    described = await collection(dsn, "imagery")
    assert described is not None
    assert (described["title"], described["summaries"]["gsd"]) == ("Roads", [10])
    await layers.unpublish(conn, "image", actor="ada")
    assert await collection(dsn, "imagery") == {
        "id": "imagery",
        "description": "From the sky",
        "summaries": {"gsd": [10]},
    }


async def test_a_projection_that_fails_is_reported_and_the_other_one_stays(
    conn: Connection, roads: str, dsn: str
) -> None:
    await layers.publish(conn, roads, actor="ada")
    await add_asset(dsn, "copy", table_name="geo.roads")
    await describe(conn, "copy")
    publication = await layers.publish(conn, "copy", actor="ada")
    assert outcomes(publication) == [WRITTEN, FAILED]
    assert not publication.is_complete
    assert publication.errors == [
        "layer_catalog: table 'geo.roads' is in the catalogue for another asset; unpublish that one first"
    ]
    assert (await get_layer(conn, "copy"))["published_at"] is None
    assert await collection(dsn, "copy") is not None
    await layers.unpublish(conn, roads, actor="ada")
    assert outcomes(await layers.publish(conn, "copy", actor="ada")) == [UNCHANGED, WRITTEN]
    assert (await get_layer(conn, "copy"))["published_at"] is not None


async def test_names_that_do_not_fit_fail_their_projection(conn: Connection, dsn: str) -> None:
    await add_asset(dsn, "long", table_name="x" * 257, stac_collection_id="y" * 257)
    await describe(conn, "long")
    publication = await layers.publish(conn, "long", actor="ada")
    assert outcomes(publication) == [FAILED, FAILED]
    assert await history(dsn, "long") == []


async def test_unpublishing_removes_all_projections_and_can_be_repeated(conn: Connection, roads: str, dsn: str) -> None:
    await layers.publish(conn, roads, actor="ada")
    assert outcomes(await layers.unpublish(conn, roads, actor="ada")) == [REMOVED, REMOVED, NOT_APPLICABLE]
    assert (await list_catalog(conn, limit=10), await collection(dsn, roads)) == ([], None)
    assert (await get_layer(conn, roads))["published_at"] is None
    assert outcomes(await layers.unpublish(conn, roads, actor="ada")) == [UNCHANGED, UNCHANGED, NOT_APPLICABLE]
    assert await history(dsn) == ["metadata_published", "metadata_unpublished"]


async def test_the_next_approved_version_takes_the_place_of_the_last(conn: Connection, roads: str, dsn: str) -> None:
    await layers.publish(conn, roads, actor="ada")
    await add_version(dsn, roads, 1, table_name="geo.roads_1", stac_collection_id="streets")
    publication = await layers.publish(conn, roads, actor="ada")
    assert (publication.version_ordinal, outcomes(publication)) == (1, [WRITTEN, WRITTEN])
    assert [entry["table_name"] for entry in await list_catalog(conn, limit=10)] == ["geo.roads_1"]
    assert (await collection(dsn, roads), await collection(dsn, "streets") is not None) == (None, True)


async def test_all_layers_are_published_at_once_and_those_that_cannot_be_are_counted(
    conn: Connection, roads: str, dsn: str
) -> None:
    await add_asset(dsn, "draft", latest=None)
    await add_asset(dsn, "late")
    await add_asset(dsn, "twin", table_name="geo.roads")
    for asset_id in ("draft", "late", "twin"):
        await describe(conn, asset_id)
    first = await layers.publish_all(conn, actor="ada")
    assert (first.changed, first.unchanged, first.skipped, first.failed) == (2, 0, 1, 1)
    assert [failure["asset_id"] for failure in first.failures] == ["twin"]
    again = await layers.publish_all(conn, actor="ada")
    assert (again.changed, again.unchanged, again.skipped, again.failed) == (0, 2, 1, 1)


async def test_a_layer_that_two_publish_at_once_is_published_once(conn: Connection, roads: str, dsn: str) -> None:
    async with opened(dsn, application="second") as second:
        both = await asyncio.gather(*(layers.publish(one, roads, actor="ada") for one in (conn, second)))
    assert sorted(outcomes(publication) for publication in both) == [[UNCHANGED] * 2, [WRITTEN] * 2]
    assert await history(dsn) == ["metadata_published"]


# Reindexing


async def test_reindexing_corrects_what_is_wrong_and_counts_it(conn: Connection, roads: str, dsn: str) -> None:
    await layers.publish(conn, roads, actor="ada")
    await add_asset(dsn, "other")
    await rows(dsn, "UPDATE dagapp.geospatial_assets SET latest_approved_version_ordinal = 7 WHERE asset_id = 'other'")
    await rows(dsn, "UPDATE dagapp.layer_catalog SET display_name = 'wrong', version_ordinal = 9")
    corrected, report = await layers.reindex(conn, actor="ada")
    assert (corrected, report.changed, report.failed) == (1, 1, 0)
    [entry] = await list_catalog(conn, limit=10)
    assert (entry["display_name"], entry["version_ordinal"]) == ("Roads", 0)
    [row] = await rows(
        dsn, "SELECT latest_approved_version_ordinal FROM dagapp.geospatial_assets WHERE asset_id = 'other'"
    )
    assert row["latest_approved_version_ordinal"] == 0
    corrected, report = await layers.reindex(conn, actor="ada")
    assert (corrected, report.changed, report.unchanged) == (0, 0, 1)


@pytest.mark.parametrize(
    "gone",
    [
        "UPDATE dagapp.geospatial_assets SET deleted_at = now()",
        "UPDATE dagapp.asset_versions SET deleted_at = now()",
    ],
)
async def test_reindexing_withdraws_the_layers_of_what_is_gone(
    conn: Connection, roads: str, dsn: str, gone: str
) -> None:
    await layers.publish(conn, roads, actor="ada")
    await rows(dsn, gone)
    _, report = await layers.reindex(conn, actor="ada")
    assert report.changed == 1
    assert (await list_catalog(conn, limit=10), await collection(dsn, roads)) == ([], None)
    assert await history(dsn) == ["metadata_published", "metadata_unpublished"]


# Decisions


def decided_by(conn: Connection) -> ServiceContext:
    return ServiceContext(conn, load_settings(), actor="ada")


async def test_a_published_layer_follows_what_is_decided_about_versions(conn: Connection, roads: str, dsn: str) -> None:
    await layers.publish(conn, roads, actor="ada")
    await add_version(dsn, roads, 1, is_approved=False, table_name="geo.roads_1")
    shown = []
    for command in (Approve(1), DeleteVersion(1), DeleteAsset()):
        assert (await decide(decided_by(conn), None, roads, command)).warnings == ()
        shown.append([entry["table_name"] for entry in await list_catalog(conn, limit=10)])
    assert shown == [["geo.roads_1"], ["geo.roads"], []]
    assert await collection(dsn, roads) is None


async def test_a_layer_that_is_not_published_stays_so_whatever_is_decided(
    conn: Connection, roads: str, dsn: str
) -> None:
    await add_version(dsn, roads, 1, is_approved=False, table_name="geo.roads_1")
    await decide(decided_by(conn), None, roads, Approve(1))
    assert (await list_catalog(conn, limit=10), (await get_layer(conn, roads))["published_at"]) == ([], None)


async def test_a_layer_that_cannot_follow_is_a_warning_of_the_decision(conn: Connection, roads: str, dsn: str) -> None:
    await layers.publish(conn, roads, actor="ada")
    await add_version(dsn, roads, 1, is_approved=False, table_name="x" * 257)
    [warning] = (await decide(decided_by(conn), None, roads, Approve(1))).warnings
    assert warning.startswith("the published layer is not up to date: layer_catalog: the name of the table has 257")


async def test_a_decision_stands_where_the_database_cannot_refresh_the_layer(
    conn: Connection, roads: str, dsn: str
) -> None:
    await layers.publish(conn, roads, actor="ada")
    await add_version(dsn, roads, 1, is_approved=False, table_name="geo.roads_1")
    await conn.execute("SET lock_timeout = '50ms'")
    async with opened(dsn, application="second") as second, second.transaction():
        await second.execute("LOCK TABLE dagapp.stac_collections")
        [warning] = (await decide(decided_by(conn), None, roads, Approve(1))).warnings
    assert warning == (
        "the published layer is not up to date: the database failed; the log of the server says why; "
        "the orchestrator tries again every few minutes, the command asset.reindex at once"
    )
    assert [entry["table_name"] for entry in await list_catalog(conn, limit=10)] == ["geo.roads"]
    assert (await layers.refresh_stale(conn, external_dsn=None)).changed == 1
    assert [entry["table_name"] for entry in await list_catalog(conn, limit=10)] == ["geo.roads_1"]
    assert (await layers.refresh_stale(conn, external_dsn=None)) == layers.BulkReport()


async def test_a_layer_follows_a_version_that_was_processed_again(conn: Connection, roads: str, dsn: str) -> None:
    await layers.publish(conn, roads, actor="ada")
    assert (await layers.refresh_stale(conn, external_dsn=None)) == layers.BulkReport()
    await rows(dsn, "UPDATE dagapp.asset_versions SET table_name = 'geo.again', version = version + 1")
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.until("SELECT table_name = 'geo.again' AS is_shown FROM dagapp.layer_catalog")


# Outside


@pytest.fixture
def external(pg_server: EmbeddedServer) -> Iterator[str]:
    """An empty database."""
    with psycopg.connect(pg_server.dsn_of("postgres"), autocommit=True) as admin:
        admin.execute("CREATE DATABASE outside")
        yield pg_server.dsn_of("outside")
        admin.execute("DROP DATABASE outside WITH (FORCE)")


async def make_public(dsn: str) -> None:
    await rows(dsn, "UPDATE dagapp.geospatial_assets SET clearance_state = 'public'")


@pytest.mark.parametrize("clearance", ["uncleared", "ouo"])
async def test_nothing_below_public_is_published_externally(
    conn: Connection, roads: str, dsn: str, external: str, clearance: str
) -> None:
    await rows(dsn, "UPDATE dagapp.geospatial_assets SET clearance_state = %s", clearance)
    with pytest.raises(Conflict, match=r"clear|only a public asset"):
        await layers.publish_externally(conn, roads, actor="ada", external_dsn=external)
    [found] = await rows(external, "SELECT to_regclass('dagapp.layer_catalog') AS name")
    assert found["name"] is None
    assert (await get_layer(conn, roads))["published_externally_at"] is None


async def test_nothing_unapproved_is_published_externally(conn: Connection, dsn: str, external: str) -> None:
    await add_asset(dsn, "draft", clearance="public", latest=None)
    await describe(conn, "draft")
    with pytest.raises(Conflict, match="no version of asset 'draft' is approved"):
        await layers.publish_externally(conn, "draft", actor="ada", external_dsn=external)


async def test_a_public_layer_is_published_externally_and_withdrawn(
    conn: Connection, roads: str, dsn: str, external: str
) -> None:
    await make_public(dsn)
    for is_first in (True, False):
        publication = await layers.publish_externally(conn, roads, actor="ada", external_dsn=external)
        assert outcomes(publication) == [WRITTEN if is_first else UNCHANGED]
    [entry] = await rows(external, "SELECT * FROM dagapp.layer_catalog")
    assert (entry["table_name"], entry["display_name"]) == ("geo.roads", "Roads")
    assert (await get_layer(conn, roads))["published_externally_at"] is not None
    unpublished = await layers.unpublish(conn, roads, actor="ada", external_dsn=external)
    assert outcomes(unpublished)[-1] is REMOVED
    assert await rows(external, "SELECT * FROM dagapp.layer_catalog") == []
    assert (await get_layer(conn, roads))["published_externally_at"] is None


async def test_without_an_external_database_the_error_names_the_setting(conn: Connection, roads: str, dsn: str) -> None:
    await make_public(dsn)
    with pytest.raises(Conflict, match="EXTERNAL_B2C_CONNECTION_STRING"):
        await layers.publish_externally(conn, roads, actor="ada", external_dsn=None)


async def test_dagmasters_own_database_is_not_an_external_one(conn: Connection, roads: str, dsn: str) -> None:
    await make_public(dsn)
    with pytest.raises(Conflict, match="a database of dagmaster itself"):
        await layers.publish_externally(conn, roads, actor="ada", external_dsn=dsn)
    assert await list_catalog(conn, limit=10) == []


async def test_an_external_database_that_is_away_changes_nothing_and_tells_no_secret(
    conn: Connection, roads: str, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    await make_public(dsn)
    with pytest.raises(Unavailable, match="the external database cannot be reached") as refused:
        await layers.publish_externally(conn, roads, actor="ada", external_dsn=AWAY)
    assert "hunter2" not in str(refused.value) + caplog.text
    assert "127.0.0.1" not in str(refused.value)
    assert (await get_layer(conn, roads))["published_externally_at"] is None
    assert await history(dsn) == []


async def test_what_the_external_database_refuses_is_reported(
    conn: Connection, roads: str, dsn: str, external: str
) -> None:
    await make_public(dsn)
    await rows(external, "CREATE SCHEMA dagapp")
    await rows(external, "CREATE TABLE dagapp.layer_catalog (table_name text)")
    with pytest.raises(Unavailable, match=r"the external database refused the change: .*source_asset_id"):
        await layers.publish_externally(conn, roads, actor="ada", external_dsn=external)
    assert (await get_layer(conn, roads))["published_externally_at"] is None


async def test_a_layer_that_cannot_be_withdrawn_outside_is_reported_as_still_there(
    conn: Connection, roads: str, dsn: str, external: str
) -> None:
    await make_public(dsn)
    await layers.publish(conn, roads, actor="ada")
    await layers.publish_externally(conn, roads, actor="ada", external_dsn=external)
    publication = await layers.unpublish(conn, roads, actor="ada", external_dsn=None)
    assert outcomes(publication) == [REMOVED, REMOVED, FAILED]
    layer = await get_layer(conn, roads)
    assert (layer["published_at"], layer["published_externally_at"] is None) == (None, False)
    with pytest.raises(Conflict, match="unpublish it first"):
        await layer_metadata.remove_layer(conn, roads, actor="ada")
    assert outcomes(await layers.unpublish(conn, roads, actor="ada", external_dsn=external))[-1] is REMOVED


async def test_an_external_layer_follows_the_next_version_and_is_withdrawn_with_its_asset(
    conn: Connection, roads: str, dsn: str, external: str
) -> None:
    await make_public(dsn)
    await layers.publish_externally(conn, roads, actor="ada", external_dsn=external)
    await add_version(dsn, roads, 1, table_name="geo.roads_1")
    await layers.refresh(conn, roads, actor="ada", external_dsn=external)
    assert await rows(external, "SELECT table_name FROM dagapp.layer_catalog") == [{"table_name": "geo.roads_1"}]
    await rows(dsn, "UPDATE dagapp.geospatial_assets SET deleted_at = now()")
    await layers.refresh(conn, roads, actor="ada", external_dsn=external)
    assert await rows(external, "SELECT table_name FROM dagapp.layer_catalog") == []
    assert await list_catalog(conn, limit=10) == []
    layer = await get_layer(conn, roads)
    assert (layer["published_at"], layer["published_externally_at"]) == (None, None)


def outside(conn: Connection, external_dsn: str) -> ServiceContext:
    return ServiceContext(conn, load_settings(external_b2c_connection_string=external_dsn), actor="ada")


async def tables_outside(external: str) -> list[str]:
    return [row["table_name"] for row in await rows(external, "SELECT table_name FROM dagapp.layer_catalog")]


@pytest.fixture
async def public_roads(conn: Connection, roads: str, dsn: str, external: str) -> str:
    """Version 0 is published outside, version 1 waits for review."""
    await make_public(dsn)
    await layers.publish_externally(conn, roads, actor="ada", external_dsn=external)
    await add_version(dsn, roads, 1, is_approved=False, table_name="geo.roads_1")
    return roads


@pytest.mark.parametrize(
    "command", [Approve(1), DeleteVersion(0), DeleteAsset()], ids=lambda command: type(command).__name__
)
async def test_a_decision_that_the_external_database_does_not_hear_of_is_sent_there_later(
    conn: Connection, public_roads: str, external: str, command: Approve | DeleteVersion | DeleteAsset
) -> None:
    [*_, warning] = (await decide(outside(conn, AWAY), None, public_roads, command)).warnings
    assert "external_catalog: the external database cannot be reached" in warning
    assert "asset.reindex" in warning and "hunter2" not in warning
    assert await tables_outside(external) == ["geo.roads"]
    assert (await layers.refresh_stale(conn, external_dsn=external)).changed == 0, "it is still being sent"
    await conn.execute("UPDATE dagapp.layer_metadata SET refresh_after = NULL")
    assert (await layers.refresh_stale(conn, external_dsn=None)).changed == 0, "that needs the external database"
    assert (await layers.refresh_stale(conn, external_dsn=external)).changed == 1
    assert await tables_outside(external) == (["geo.roads_1"] if isinstance(command, Approve) else [])


async def test_what_the_external_database_refuses_is_a_warning_of_the_decision(
    conn: Connection, public_roads: str, external: str
) -> None:
    await rows(external, "ALTER TABLE dagapp.layer_catalog ADD CHECK (table_name <> 'geo.roads_1')")
    [*_, warning] = (await decide(outside(conn, external), None, public_roads, Approve(1))).warnings
    assert "the external database refused the change" in warning
    assert await tables_outside(external) == ["geo.roads"]


async def test_others_decide_while_the_external_database_is_slow(
    conn: Connection, public_roads: str, dsn: str, external: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SECONDS", "LOCK_SECONDS"):
        monkeypatch.setattr(f"dagmaster.store.external_catalog.{name}", 100.0)
    async with opened(external, application="slow") as slow, opened(dsn, application="second") as second:
        await second.execute("SET lock_timeout = '2s'")
        async with slow.transaction():
            await slow.execute("LOCK TABLE dagapp.layer_catalog")
            approval = asyncio.create_task(decide(outside(conn, external), None, public_roads, Approve(1)))
            await until_blocked(second, slow.info.backend_pid)
            exposed = Expose(ExposureMode.ALL_VERSIONS)
            assert (await decide(decided_by(second), None, public_roads, exposed)).warnings == ()
        assert not any("layer" in warning for warning in (await approval).warnings)
    assert await tables_outside(external) == ["geo.roads_1"]


async def until_blocked(conn: Connection, blocker_pid: int) -> None:
    """Until some session waits for a lock that this one holds."""
    query = "SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
    while not await (await conn.execute(query, [blocker_pid])).fetchall():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def test_an_older_state_never_replaces_a_newer_one_outside(
    conn: Connection, public_roads: str, external: str
) -> None:
    """Whichever arrives first; also where the newer one has removed the row."""

    layer, version = await get_layer(conn, public_roads), await get_version_row(conn, public_roads, 0)
    entry = catalog_entry(layer, version)
    assert entry is not None
    async with conn.transaction():
        older = await expect(conn, public_roads, {**entry, "table_name": "geo.older"}, 0)
        newer = await expect(conn, public_roads, {**entry, "table_name": "geo.newer"}, 0)
        gone = await expect(conn, public_roads, None, is_external=False)
    shown = []
    for state in (newer, older, gone, newer):
        await send(conn, state, actor="ada", external_dsn=external)
        shown.append(await tables_outside(external))
    assert shown == [["geo.newer"], ["geo.newer"], [], []]
    assert (await get_layer(conn, public_roads))["external_pending"] is None


async def test_a_publication_whose_outcome_is_unknown_is_taken_back_outside(
    conn: Connection, roads: str, dsn: str, external: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_public(dsn)
    monkeypatch.setattr("dagmaster.store.external_catalog.LOCK_SECONDS", 0.05)
    async with opened(external, application="slow") as slow, slow.transaction():
        await slow.execute("CREATE SCHEMA dagapp")  # A lock that the transaction there waits for.
        with pytest.raises(OutcomeUnknown):
            await layers.publish_externally(conn, roads, actor="ada", external_dsn=external)
    layer = await get_layer(conn, roads)
    assert (layer["is_external"], layer["external_pending"] is None) == (False, False)
    with pytest.raises(Conflict, match="unpublish it first"):
        await layer_metadata.remove_layer(conn, roads, actor="ada")
    await layers.unpublish(conn, roads, actor="ada", external_dsn=external)
    assert await tables_outside(external) == []
    await layer_metadata.remove_layer(conn, roads, actor="ada")
