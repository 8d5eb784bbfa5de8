"""Platforms over HTTP."""

from collections.abc import AsyncIterator

import pytest
from web import Web, web

from dagmaster.model.access import Role

CKAN = {"platform_id": "ckan", "display_name": "CKAN", "required_refs": ["package"]}


@pytest.fixture
async def api(dsn: str) -> AsyncIterator[Web]:
    async with web(dsn) as site:
        yield site


async def test_platforms_can_be_added_changed_and_listed(api: Web) -> None:
    me = await api.key("me")
    created = await api.post("/api/v1/platforms", CKAN, 201, headers=me)
    assert (created["optional_refs"], created["is_active"], created["allowed_workflows"]) == ([], True, None)
    changed = await api.ask("PATCH", "/api/v1/platforms/ckan", 200, json={"is_active": False}, headers=me)
    assert changed == {**created, "is_active": False, "updated_at": changed["updated_at"]}
    assert await api.get("/api/v1/platforms/ckan", headers=me) == changed
    listed = (await api.get("/api/v1/platforms", headers=me))["platforms"]
    assert [platform["platform_id"] for platform in listed] == ["arcgis", "ckan", "ddh", "geonode"]
    audit = (await api.get("/api/v1/audit", headers=me))["items"]
    assert [(entry["command"], entry["actor"]) for entry in audit[:2]] == [
        ("platforms.change", "me"),
        ("platforms.add", "me"),
    ]


async def test_invalid_platforms_are_refused(api: Web) -> None:
    await api.post("/api/v1/platforms", {**CKAN, "platform_id": "ddh"}, 409)
    await api.post("/api/v1/platforms", {**CKAN, "platform_id": "C KAN"}, 422)
    await api.post("/api/v1/platforms", {**CKAN, "required_refs": []}, 422)
    await api.post("/api/v1/platforms", {**CKAN, "optional_refs": ["package"]}, 422)
    await api.ask("PATCH", "/api/v1/platforms/ddh", 422, json={"required_refs": ["x"]})
    unknown = await api.ask("PATCH", "/api/v1/platforms/dhd", 404, json={"is_active": False})
    assert (unknown["code"], "arcgis, ddh, geonode" in unknown["detail"]) == ("unknown_platform", True)


@pytest.mark.parametrize("role", [Role.PARTNER, Role.REVIEWER])
async def test_a_key_of_one_platform_sees_only_that_platform(api: Web, role: Role) -> None:
    await api.key("me")
    ddh = await api.key("ddh", role, platform_id="ddh")
    listed = (await api.get("/api/v1/platforms", headers=ddh))["platforms"]
    assert [platform["platform_id"] for platform in listed] == ["ddh"]
    await api.get("/api/v1/platforms/ddh", headers=ddh)
    hidden = await api.get("/api/v1/platforms/arcgis", 404, headers=ddh)
    assert "geonode" not in hidden["detail"]


async def test_the_default_platforms_can_be_seeded_again(api: Web) -> None:
    seeded = await api.post("/api/v1/bootstrap/seed-platforms")
    assert (seeded["added"], len(seeded["platforms"])) == (0, 3)
