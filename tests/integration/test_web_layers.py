"""Layer metadata, the catalogue and the commands that publish layers, over HTTP."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from asset_rows import add_asset, add_version
from fleet import rows
from web import Web, web

from dagmaster.model.access import Role

PATH = "/api/v1/domain/metadata/"
COMMANDS = "/api/v1/commands"


@pytest.fixture
async def api(dsn: str) -> AsyncIterator[Web]:
    await add_asset(dsn, "roads")
    async with web(dsn) as site:
        yield site


async def describe(api: Web, asset_id: str = "roads", **changes: Any) -> Any:
    return await api.post(PATH, {"asset_id": asset_id, "display_name": "Roads", **changes}, 201)


async def test_metadata_can_be_created_read_replaced_and_removed(api: Web) -> None:
    layer = await describe(api, keywords=["a"], style={"color": "red"}, min_zoom=3)
    assert (layer["version"], layer["data_type"], layer["max_zoom"], layer["default_visible"]) == (
        1,
        "vector",
        24,
        True,
    )
    assert await api.get(PATH + "roads") == layer
    assert (await api.get(PATH))["items"] == [layer]
    body = {"version": 1, "display_name": "Streets", "data_type": "vector"}
    replaced = await api.ask("PUT", PATH + "roads", 200, json=body)
    assert (replaced["version"], replaced["display_name"], replaced["keywords"], replaced["style"]) == (
        2,
        "Streets",
        [],
        None,
    )
    assert await api.ask("DELETE", PATH + "roads", 204) == ""
    assert (await api.get(PATH + "roads", 404))["code"] == "unknown_layer"
    await api.ask("DELETE", PATH + "roads", 404)


async def test_the_path_works_without_its_trailing_slash(api: Web) -> None:
    answer = await api.client.get(PATH.removesuffix("/"), follow_redirects=True)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"min_zoom": 9, "max_zoom": 8}, "min_zoom (9) must not be greater than max_zoom (8)"),
        ({"max_zoom": 25}, "max_zoom"),
        ({"display_name": ""}, "display_name"),
        ({"thumbnail_url": "javascript:alert(1)"}, "thumbnail_url"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_invalid_metadata_is_refused_and_the_field_named(api: Web, changes: dict[str, Any], named: str) -> None:
    refused = await api.post(PATH, {"asset_id": "roads", "display_name": "Roads", **changes}, 422)
    assert named in refused["error"]["message"]


async def test_metadata_needs_an_asset_of_that_data_type_and_the_current_version(api: Web) -> None:
    assert (await api.post(PATH, {"asset_id": "nothing", "display_name": "x"}, 404))["code"] == "unknown_asset"
    await api.post(PATH, {"asset_id": "roads", "display_name": "x", "data_type": "raster"}, 409)
    body = {"version": 1, "display_name": "Streets"}
    await api.ask("PUT", PATH + "roads", 404, json=body)
    await describe(api)
    await api.post(PATH, {"asset_id": "roads", "display_name": "x"}, 409)
    await api.ask("PUT", PATH + "roads", 422, json={"display_name": "Streets"})
    await api.ask("PUT", PATH + "roads", 200, json=body)
    stale = await api.ask("PUT", PATH + "roads", 409, json=body)
    assert "at version 2, not 1" in stale["error"]["message"]


async def test_a_layer_can_be_published_by_path_and_by_command(api: Web) -> None:
    await describe(api)
    done = await api.post(f"{COMMANDS}/metadata/publish/roads")
    assert done["command"] == "metadata.publish"
    assert done["result"]["is_complete"] and done["result"]["published_at"]
    assert [(item["name"], item["outcome"], item["target"]) for item in done["result"]["projections"]] == [
        ("stac_collection", "written", "roads"),
        ("layer_catalog", "written", "geo.roads"),
    ]
    again = await api.post(f"{COMMANDS}/metadata.publish", {"params": {"asset_id": "roads"}})
    assert {item["outcome"] for item in again["result"]["projections"]} == {"unchanged"}
    [entry] = (await api.get("/api/v1/domain/catalog/"))["items"]
    assert await api.get("/api/v1/domain/catalog/geo.roads") == entry
    assert (entry["source_asset_id"], entry["display_name"]) == ("roads", "Roads")
    await api.ask("DELETE", PATH + "roads", 409)
    await api.ask("PUT", PATH + "roads", 200, json={"version": 1, "display_name": "Streets"})
    assert (await api.get(PATH + "roads"))["has_unpublished_changes"]
    everything = await api.post(f"{COMMANDS}/metadata.publish", {"params": {"all": True}})
    assert everything["result"] == {"changed": 1, "unchanged": 0, "skipped": 0, "failed": 0, "failures": []}
    assert not (await api.get(PATH + "roads"))["has_unpublished_changes"]
    await api.post(f"{COMMANDS}/metadata/unpublish/roads")
    await api.get("/api/v1/domain/catalog/geo.roads", 404)
    assert (await api.get(PATH + "?is_published=true"))["items"] == []


async def test_each_command_is_audited_once_whether_it_succeeds_or_not(api: Web, dsn: str) -> None:
    await describe(api)
    me = await api.key("me")
    await api.post(f"{COMMANDS}/metadata/publish/roads", headers=me)
    await api.post(f"{COMMANDS}/asset.reindex", headers=me)
    await api.post(f"{COMMANDS}/metadata.publish_external", {"params": {"asset_id": "roads"}}, 409, headers=me)
    await api.post(f"{COMMANDS}/metadata/publish/nothing", status=404, headers=me)
    audit = (await api.get("/api/v1/audit?limit=4", headers=me))["items"]
    assert [(entry["command"], entry["actor"], entry["error_message"] is None) for entry in audit] == [
        ("metadata.publish", "me", False),
        ("metadata.publish_external", "me", False),
        ("asset.reindex", "me", True),
        ("metadata.publish", "me", True),
    ]
    [event] = await rows(dsn, "SELECT event_type, actor FROM dagapp.asset_events WHERE asset_id = 'roads'")
    assert event == {"event_type": "metadata_published", "actor": "me"}


async def test_a_gateway_can_name_the_actor(api: Web) -> None:
    gateway = await api.key("gateway")
    created = {"asset_id": "roads", "display_name": "Roads", "actor": "ada"}
    await api.post(PATH, created, 201, headers=gateway)
    replaced = {"version": 1, "display_name": "Streets", "actor": "bob"}
    await api.ask("PUT", PATH + "roads", 200, json=replaced, headers=gateway)
    await api.post(f"{COMMANDS}/metadata.publish", {"params": {"all": True}, "actor": "eve"}, headers=gateway)
    await api.post(f"{COMMANDS}/metadata/unpublish/roads?actor=dan", headers=gateway)
    await api.ask("DELETE", PATH + "roads?actor=ian", 204, headers=gateway)
    audit = (await api.get("/api/v1/audit?limit=5", headers=gateway))["items"]
    assert [entry["actor"] for entry in audit] == ["ian", "dan", "eve", "bob", "ada"]


async def test_commands_name_invalid_parameters(api: Web) -> None:
    both = await api.post(f"{COMMANDS}/metadata.publish", {"params": {"asset_id": "x", "all": True}}, 422)
    assert both["error"]["message"] == "params: give either asset_id or all: true"
    neither = await api.post(f"{COMMANDS}/metadata.publish", status=422)
    assert "give either asset_id or all: true" in neither["error"]["message"]
    missing = await api.post(f"{COMMANDS}/metadata.unpublish", status=422)
    assert missing["error"]["message"] == "params.asset_id: Field required"
    await api.post(f"{COMMANDS}/metadata/republish/roads", status=422)


async def test_publishing_externally_needs_public_clearance_and_the_setting(api: Web, dsn: str) -> None:
    await describe(api)
    body = {"params": {"asset_id": "roads"}}
    refused = await api.post(f"{COMMANDS}/metadata.publish_external", body, 409)
    assert "only a public asset" in refused["error"]["message"]
    await rows(dsn, "UPDATE dagapp.geospatial_assets SET clearance_state = 'public'")
    refused = await api.post(f"{COMMANDS}/metadata.publish_external", body, 409)
    assert "EXTERNAL_B2C_CONNECTION_STRING" in refused["error"]["message"]


async def test_an_unreachable_external_database_is_reported_without_its_address(dsn: str) -> None:
    await add_asset(dsn, "roads", clearance="public")
    away = "postgresql://writer:hunter2@127.0.0.1:1/outside"
    async with web(dsn, external_b2c_connection_string=away) as api:
        await describe(api)
        failed = await api.post(f"{COMMANDS}/metadata.publish_external", {"params": {"asset_id": "roads"}}, 503)
        assert failed["error"]["message"].startswith("the external database cannot be reached")
        everything = str(failed) + str(await api.get("/api/v1/audit"))
        assert "hunter2" not in everything and "127.0.0.1" not in everything


async def test_every_decision_reports_layers_that_could_not_be_refreshed(api: Web, dsn: str) -> None:
    """No external database is configured, but the layer was published there."""
    await describe(api)
    await rows(dsn, "UPDATE dagapp.layer_metadata SET is_external = true")
    await add_version(dsn, "roads", 1, is_approved=False)
    await add_version(dsn, "roads", 2)
    path = "/api/v1/assets/roads"
    decided = [
        await api.post(f"{path}/approve", {}),
        await api.post(f"{path}/versions/2/unpublish"),
        await api.ask("DELETE", f"{path}/versions/1", 200),
        await api.ask("DELETE", path, 200),
    ]
    for reply in decided:
        [warning] = reply["warnings"]
        assert warning.startswith("the published layer is not up to date: external_catalog: there is no external")
        assert "asset.reindex" in warning


async def test_a_decision_without_a_layer_has_no_warnings(api: Web) -> None:
    path = "/api/v1/assets/roads"
    assert (await api.ask("PATCH", path, 200, json={"exposure_mode": "all_versions"}))["warnings"] == []
    assert (await api.ask("DELETE", path, 200))["warnings"] == []


async def test_a_platform_reviewer_sees_only_layers_of_that_platform(api: Web, dsn: str) -> None:
    await add_asset(dsn, "lakes", platform_id="arcgis")
    for asset_id in ("roads", "lakes"):
        await describe(api, asset_id)
        await api.post(f"{COMMANDS}/metadata/publish/{asset_id}")
    await api.key("me")
    ddh = await api.key("ddh", Role.REVIEWER, platform_id="ddh")
    assert [layer["asset_id"] for layer in (await api.get(PATH, headers=ddh))["items"]] == ["roads"]
    assert [item["table_name"] for item in (await api.get("/api/v1/domain/catalog/", headers=ddh))["items"]] == [
        "geo.roads"
    ]
    await api.get(PATH + "roads", headers=ddh)
    await api.get(PATH + "lakes", 404, headers=ddh)
    await api.get("/api/v1/domain/catalog/geo.lakes", 404, headers=ddh)
