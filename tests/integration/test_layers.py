"""Layers are published to the catalogue and to STAC, and follow decisions on their versions."""

import asyncio
from typing import Any

import pytest
from asset_rows import add_asset, add_version
from fleet import fleet, rows
from layer_rows import (
    FAILED,
    FIELDS,
    NOT_APPLICABLE,
    REMOVED,
    UNCHANGED,
    WRITTEN,
    add_roads,
    decided_by,
    describe,
    history,
    outcomes,
)

from dagmaster.assets import layer_metadata, layers
from dagmaster.errors import Conflict, UnknownAsset, UnknownLayer
from dagmaster.model.asset import DataType
from dagmaster.service.asset_contract import Approve, DeleteAsset, DeleteVersion
from dagmaster.service.assets import decide
from dagmaster.store.connect import Connection, opened
from dagmaster.store.layer_catalog import list_catalog
from dagmaster.store.layers import get_layer


@pytest.fixture
async def roads(conn: Connection, dsn: str) -> str:
    return await add_roads(conn, dsn)


async def collection(dsn: str, collection_id: str) -> dict[str, Any] | None:
    query = "SELECT content FROM dagapp.stac_collections WHERE collection_id = %s"
    collections = await rows(dsn, query, collection_id)
    return collections[0]["content"] if collections else None


# Metadata


async def test_metadata_needs_an_existing_asset_of_the_same_data_type(conn: Connection, dsn: str) -> None:
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


async def test_a_stale_update_does_not_overwrite_a_newer_version(conn: Connection, roads: str) -> None:
    changed = await layer_metadata.replace_layer(
        conn, roads, 1, None, {**FIELDS, "display_name": "Streets"}, actor="ada"
    )
    assert (changed["display_name"], changed["version"]) == ("Streets", 2)
    with pytest.raises(Conflict, match="at version 2, not 1"):
        await layer_metadata.replace_layer(conn, roads, 1, None, FIELDS, actor="bob")
    assert (await get_layer(conn, roads))["display_name"] == "Streets"


async def test_metadata_of_a_published_layer_cannot_be_removed(conn: Connection, roads: str, dsn: str) -> None:
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


async def test_a_change_becomes_visible_when_published(conn: Connection, roads: str) -> None:
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


async def test_a_raster_without_a_table_is_published_only_in_stac(conn: Connection, dsn: str) -> None:
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


async def test_a_failed_projection_is_reported_and_the_others_remain(conn: Connection, roads: str, dsn: str) -> None:
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


async def test_invalid_names_fail_their_projection(conn: Connection, dsn: str) -> None:
    await add_asset(dsn, "long", table_name="x" * 257, stac_collection_id="y" * 257)
    await describe(conn, "long")
    publication = await layers.publish(conn, "long", actor="ada")
    assert outcomes(publication) == [FAILED, FAILED]
    assert await history(dsn, "long") == []


async def test_unpublishing_removes_all_projections_and_is_idempotent(conn: Connection, roads: str, dsn: str) -> None:
    await layers.publish(conn, roads, actor="ada")
    assert outcomes(await layers.unpublish(conn, roads, actor="ada")) == [REMOVED, REMOVED, NOT_APPLICABLE]
    assert (await list_catalog(conn, limit=10), await collection(dsn, roads)) == ([], None)
    assert (await get_layer(conn, roads))["published_at"] is None
    assert outcomes(await layers.unpublish(conn, roads, actor="ada")) == [UNCHANGED, UNCHANGED, NOT_APPLICABLE]
    assert await history(dsn) == ["metadata_published", "metadata_unpublished"]


async def test_the_next_approved_version_replaces_the_last(conn: Connection, roads: str, dsn: str) -> None:
    await layers.publish(conn, roads, actor="ada")
    await add_version(dsn, roads, 1, table_name="geo.roads_1", stac_collection_id="streets")
    publication = await layers.publish(conn, roads, actor="ada")
    assert (publication.version_ordinal, outcomes(publication)) == (1, [WRITTEN, WRITTEN])
    assert [entry["table_name"] for entry in await list_catalog(conn, limit=10)] == ["geo.roads_1"]
    assert (await collection(dsn, roads), await collection(dsn, "streets") is not None) == (None, True)


async def test_publishing_all_layers_counts_failures(conn: Connection, roads: str, dsn: str) -> None:
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


async def test_concurrent_publications_publish_a_layer_once(conn: Connection, roads: str, dsn: str) -> None:
    async with opened(dsn, application="second") as second:
        both = await asyncio.gather(*(layers.publish(publisher, roads, actor="ada") for publisher in (conn, second)))
    assert sorted(outcomes(publication) for publication in both) == [[UNCHANGED] * 2, [WRITTEN] * 2]
    assert await history(dsn) == ["metadata_published"]


# Reindexing


async def test_reindexing_corrects_and_counts_errors(conn: Connection, roads: str, dsn: str) -> None:
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
async def test_reindexing_withdraws_layers_of_deleted_assets(conn: Connection, roads: str, dsn: str, gone: str) -> None:
    await layers.publish(conn, roads, actor="ada")
    await rows(dsn, gone)
    _, report = await layers.reindex(conn, actor="ada")
    assert report.changed == 1
    assert (await list_catalog(conn, limit=10), await collection(dsn, roads)) == ([], None)
    assert await history(dsn) == ["metadata_published", "metadata_unpublished"]


# Decisions


async def test_a_published_layer_follows_decisions_on_versions(conn: Connection, roads: str, dsn: str) -> None:
    await layers.publish(conn, roads, actor="ada")
    await add_version(dsn, roads, 1, is_approved=False, table_name="geo.roads_1")
    catalogs = []
    for command in (Approve(1), DeleteVersion(1), DeleteAsset()):
        assert (await decide(decided_by(conn), None, roads, command)).warnings == ()
        catalogs.append([entry["table_name"] for entry in await list_catalog(conn, limit=10)])
    assert catalogs == [["geo.roads_1"], ["geo.roads"], []]
    assert await collection(dsn, roads) is None


async def test_an_unpublished_layer_stays_unpublished_after_decisions(conn: Connection, roads: str, dsn: str) -> None:
    await add_version(dsn, roads, 1, is_approved=False, table_name="geo.roads_1")
    await decide(decided_by(conn), None, roads, Approve(1))
    assert (await list_catalog(conn, limit=10), (await get_layer(conn, roads))["published_at"]) == ([], None)


async def test_a_layer_that_cannot_be_refreshed_is_a_warning_of_the_decision(
    conn: Connection, roads: str, dsn: str
) -> None:
    await layers.publish(conn, roads, actor="ada")
    await add_version(dsn, roads, 1, is_approved=False, table_name="x" * 257)
    [warning] = (await decide(decided_by(conn), None, roads, Approve(1))).warnings
    assert warning.startswith("the published layer is not up to date: layer_catalog: the name of the table has 257")


async def test_a_decision_stands_if_the_layer_cannot_be_refreshed(conn: Connection, roads: str, dsn: str) -> None:
    await layers.publish(conn, roads, actor="ada")
    await add_version(dsn, roads, 1, is_approved=False, table_name="geo.roads_1")
    await conn.execute("SET lock_timeout = '50ms'")
    async with opened(dsn, application="second") as second, second.transaction():
        await second.execute("LOCK TABLE dagapp.stac_collections")
        [warning] = (await decide(decided_by(conn), None, roads, Approve(1))).warnings
    assert warning == (
        "the published layer is not up to date: the database failed; see the server's log; "
        "the orchestrator retries every few minutes, the command asset.reindex at once"
    )
    assert [entry["table_name"] for entry in await list_catalog(conn, limit=10)] == ["geo.roads"]
    assert (await layers.refresh_stale(conn, external_dsn=None)).changed == 1
    assert [entry["table_name"] for entry in await list_catalog(conn, limit=10)] == ["geo.roads_1"]
    assert (await layers.refresh_stale(conn, external_dsn=None)) == layers.BulkReport()


async def test_a_layer_follows_a_reprocessed_version(conn: Connection, roads: str, dsn: str) -> None:
    await layers.publish(conn, roads, actor="ada")
    assert (await layers.refresh_stale(conn, external_dsn=None)) == layers.BulkReport()
    await rows(dsn, "UPDATE dagapp.asset_versions SET table_name = 'geo.again', version = version + 1")
    async with fleet(dsn) as running:
        await running.orchestrator()
        await running.until("SELECT table_name = 'geo.again' AS is_shown FROM dagapp.layer_catalog")
