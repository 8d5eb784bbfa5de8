"""Only public layers are published externally, and they are withdrawn with their asset."""

import asyncio
from collections.abc import Iterator

import psycopg
import pytest
from asset_rows import add_asset, add_version
from fleet import rows
from layer_rows import FAILED, REMOVED, UNCHANGED, WRITTEN, add_roads, decided_by, describe, history, outcomes

from dagmaster.assets import layer_metadata, layers
from dagmaster.assets.external_layers import expect, send
from dagmaster.assets.projections import catalog_entry
from dagmaster.errors import Conflict, Unavailable
from dagmaster.model.asset import ExposureMode
from dagmaster.service.asset_contract import Approve, DeleteAsset, DeleteVersion, Expose
from dagmaster.service.assets import decide
from dagmaster.service.context import ServiceContext
from dagmaster.settings import load_settings
from dagmaster.store.asset_versions import get_version_row
from dagmaster.store.connect import Connection, opened
from dagmaster.store.embedded import EmbeddedServer
from dagmaster.store.layer_catalog import OutcomeUnknown, list_catalog
from dagmaster.store.layers import get_layer

AWAY = "postgresql://writer:hunter2@127.0.0.1:1/outside"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, the first use of the external database takes seconds."""
    monkeypatch.setattr("dagmaster.store.layer_catalog.EXTERNAL_SECONDS", 100.0)


@pytest.fixture
async def roads(conn: Connection, dsn: str) -> str:
    return await add_roads(conn, dsn)


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
async def test_only_public_layers_are_published_externally(
    conn: Connection, roads: str, dsn: str, external: str, clearance: str
) -> None:
    await rows(dsn, "UPDATE dagapp.geospatial_assets SET clearance_state = %s", clearance)
    with pytest.raises(Conflict, match=r"clear|only a public asset"):
        await layers.publish_externally(conn, roads, actor="ada", external_dsn=external)
    [table] = await rows(external, "SELECT to_regclass('dagapp.layer_catalog') AS name")
    assert table["name"] is None
    assert (await get_layer(conn, roads))["published_externally_at"] is None


async def test_unapproved_versions_are_not_published_externally(conn: Connection, dsn: str, external: str) -> None:
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


async def test_dagmasters_own_database_is_refused_as_an_external_one(conn: Connection, roads: str, dsn: str) -> None:
    await make_public(dsn)
    with pytest.raises(Conflict, match="dagmaster's own database"):
        await layers.publish_externally(conn, roads, actor="ada", external_dsn=dsn)
    assert await list_catalog(conn, limit=10) == []


async def test_an_unreachable_external_database_changes_nothing_and_leaks_no_secret(
    conn: Connection, roads: str, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    await make_public(dsn)
    with pytest.raises(Unavailable, match="the external database cannot be reached") as refused:
        await layers.publish_externally(conn, roads, actor="ada", external_dsn=AWAY)
    assert "hunter2" not in str(refused.value) + caplog.text
    assert "127.0.0.1" not in str(refused.value)
    assert (await get_layer(conn, roads))["published_externally_at"] is None
    assert await history(dsn) == []


async def test_a_refusal_by_the_external_database_is_reported(
    conn: Connection, roads: str, dsn: str, external: str
) -> None:
    await make_public(dsn)
    await rows(external, "CREATE SCHEMA dagapp")
    await rows(external, "CREATE TABLE dagapp.layer_catalog (table_name text)")
    with pytest.raises(Unavailable, match=r"the external database refused the change: .*source_asset_id"):
        await layers.publish_externally(conn, roads, actor="ada", external_dsn=external)
    assert (await get_layer(conn, roads))["published_externally_at"] is None


async def test_a_layer_that_cannot_be_withdrawn_externally_is_reported_as_published(
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
    """Version 0 is published externally, version 1 waits for review."""
    await make_public(dsn)
    await layers.publish_externally(conn, roads, actor="ada", external_dsn=external)
    await add_version(dsn, roads, 1, is_approved=False, table_name="geo.roads_1")
    return roads


@pytest.mark.parametrize(
    "command", [Approve(1), DeleteVersion(0), DeleteAsset()], ids=lambda command: type(command).__name__
)
async def test_a_decision_missed_by_the_external_database_is_sent_later(
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


async def test_a_refusal_by_the_external_database_is_a_warning_of_the_decision(
    conn: Connection, public_roads: str, external: str
) -> None:
    await rows(external, "ALTER TABLE dagapp.layer_catalog ADD CHECK (table_name <> 'geo.roads_1')")
    [*_, warning] = (await decide(outside(conn, external), None, public_roads, Approve(1))).warnings
    assert "the external database refused the change" in warning
    assert await tables_outside(external) == ["geo.roads"]


async def test_a_slow_external_database_does_not_block_other_decisions(
    conn: Connection, public_roads: str, dsn: str, external: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagmaster.store.layer_catalog.LOCK_SECONDS", 100.0)
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
    """Wait until a session waits for a lock that this one holds."""
    query = "SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
    while not await (await conn.execute(query, [blocker_pid])).fetchall():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def test_an_older_state_never_overwrites_a_newer_one_externally(
    conn: Connection, public_roads: str, external: str
) -> None:
    """Whichever arrives first, and also if the newer one has removed the row."""

    layer, version = await get_layer(conn, public_roads), await get_version_row(conn, public_roads, 0)
    entry = catalog_entry(layer, version)
    assert entry is not None
    async with conn.transaction():
        older = await expect(conn, public_roads, {**entry, "table_name": "geo.older"}, 0)
        newer = await expect(conn, public_roads, {**entry, "table_name": "geo.newer"}, 0)
        gone = await expect(conn, public_roads, None, is_external=False)
    tables = []
    for state in (newer, older, gone, newer):
        await send(conn, state, actor="ada", external_dsn=external)
        tables.append(await tables_outside(external))
    assert tables == [["geo.newer"], ["geo.newer"], [], []]
    assert (await get_layer(conn, public_roads))["external_pending"] is None


async def test_a_publication_with_unknown_outcome_is_withdrawn_externally(
    conn: Connection, roads: str, dsn: str, external: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_public(dsn)
    monkeypatch.setattr("dagmaster.store.layer_catalog.LOCK_SECONDS", 0.05)
    async with opened(external, application="slow") as slow, slow.transaction():
        await slow.execute("CREATE SCHEMA dagapp")  # A lock that the external transaction waits for.
        with pytest.raises(OutcomeUnknown):
            await layers.publish_externally(conn, roads, actor="ada", external_dsn=external)
    layer = await get_layer(conn, roads)
    assert (layer["is_external"], layer["external_pending"] is None) == (False, False)
    with pytest.raises(Conflict, match="unpublish it first"):
        await layer_metadata.remove_layer(conn, roads, actor="ada")
    await layers.unpublish(conn, roads, actor="ada", external_dsn=external)
    assert await tables_outside(external) == []
    await layer_metadata.remove_layer(conn, roads, actor="ada")
