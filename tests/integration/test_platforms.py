"""Platforms can be added, changed and found; each change is audited."""

from typing import Any

import pytest
from fleet import rows

from dagmaster.errors import Conflict, Invalid, UnknownPlatform
from dagmaster.model.asset import Platform
from dagmaster.store.connect import Connection
from dagmaster.store.platforms import (
    add_platform,
    change_platform,
    find_platform,
    get_platform,
    list_platforms,
    seed_platforms,
)

CKAN = Platform("ckan", "CKAN", ("package",), ("resource",))


async def commands(dsn: str) -> list[dict[str, Any]]:
    events = await rows(
        dsn, "SELECT event_data, source_app FROM dagapp.dag_job_events WHERE event_type = 'command' ORDER BY event_id"
    )
    return [{**row["event_data"], "source_app": row["source_app"]} for row in events]


async def test_every_installation_has_the_default_platforms(conn: Connection) -> None:
    assert [row["platform_id"] for row in await list_platforms(conn)] == ["arcgis", "ddh", "geonode"]
    ddh = await find_platform(conn, "ddh")
    assert ddh == Platform("ddh", "Data Development Hub", ("dataset_id", "resource_id"), ("version_id",))
    assert await find_platform(conn, "DDH") is None


async def test_an_added_platform_is_read_back_unchanged(conn: Connection, dsn: str) -> None:
    await add_platform(conn, CKAN, actor="ada")
    limited = Platform("osm", "OSM", ("id",), is_active=False, allowed_workflows=("import",))
    await add_platform(conn, limited, actor=None, source_app="api")
    assert (await find_platform(conn, "ckan"), await find_platform(conn, "osm")) == (CKAN, limited)
    traces = [
        (event["command"], event["actor"], event["platform_id"], event["source_app"]) for event in await commands(dsn)
    ]
    assert traces == [("platforms.add", "ada", "ckan", "cli"), ("platforms.add", None, "osm", "api")]


async def test_a_platform_cannot_be_added_twice(conn: Connection, dsn: str) -> None:
    with pytest.raises(Conflict, match="platform 'ddh' exists already"):
        await add_platform(conn, Platform("ddh", "Another", ("x",)), actor="ada")
    assert await commands(dsn) == []


async def test_a_reference_cannot_be_named_twice(conn: Connection) -> None:
    with pytest.raises(Invalid, match="named once: id"):
        await add_platform(conn, Platform("osm", "OSM", ("id",), ("id",)), actor="ada")
    with pytest.raises(Invalid, match="requires these references already: dataset_id"):
        await change_platform(conn, "ddh", {"optional_refs": ["dataset_id"]}, actor="ada")


@pytest.mark.parametrize(
    "wrong", [Platform("Two Words", "x", ("id",)), Platform("", "x", ("id",)), Platform("none", "x", ())]
)
async def test_invalid_ids_and_references_are_refused(conn: Connection, wrong: Platform) -> None:
    with pytest.raises(Invalid, match=r"cannot be the id of a platform|needs the name of at least one reference"):
        await add_platform(conn, wrong, actor="ada")


async def test_an_update_changes_only_the_given_columns(conn: Connection, dsn: str) -> None:
    before = await get_platform(conn, "ddh")
    after = await change_platform(conn, "ddh", {"is_active": False, "allowed_workflows": ["a"]}, actor="ada")
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"is_active", "allowed_workflows", "updated_at"}
    await change_platform(conn, "ddh", {"display_name": "Hub"}, actor="ada")
    assert (await get_platform(conn, "ddh"))["allowed_workflows"] == ["a"]
    await change_platform(conn, "ddh", {"allowed_workflows": None}, actor="ada")
    hub = Platform("ddh", "Hub", ("dataset_id", "resource_id"), ("version_id",), is_active=False)
    assert await find_platform(conn, "ddh") == hub
    assert [event["changes"] for event in await commands(dsn)] == [
        {"is_active": False, "allowed_workflows": ["a"]},
        {"display_name": "Hub"},
        {"allowed_workflows": None},
    ]


async def test_the_required_references_never_change(conn: Connection) -> None:
    with pytest.raises(Invalid, match="is_active, optional_refs of a platform can change"):
        await change_platform(conn, "ddh", {"required_refs": ["x"]}, actor="ada")


async def test_an_unknown_platform_error_lists_the_known_ones(conn: Connection) -> None:
    with pytest.raises(UnknownPlatform, match="'dhd'; there are arcgis, ddh, geonode"):
        await get_platform(conn, "dhd")
    with pytest.raises(UnknownPlatform, match="'dhd'"):
        await change_platform(conn, "dhd", {"is_active": False}, actor="ada")


async def test_seeding_adds_missing_platforms_and_keeps_changed_ones(conn: Connection, dsn: str) -> None:
    await change_platform(conn, "ddh", {"display_name": "Hub"}, actor="ada")
    assert await seed_platforms(conn, actor="ada") == 0
    await rows(dsn, "DELETE FROM dagapp.platforms WHERE platform_id = 'geonode'")
    assert await seed_platforms(conn, actor="ada") == 1
    assert [row["display_name"] for row in await list_platforms(conn)] == ["ArcGIS Online", "Hub", "GeoNode"]
    assert [event["added"] for event in await commands(dsn) if event["command"] == "bootstrap.seed-platforms"] == [0, 1]
