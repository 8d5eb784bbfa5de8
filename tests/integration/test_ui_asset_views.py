"""The pages of assets, reviews and requests: their content by role."""

import re
from typing import Any

from test_assets import ASSET_ID, REFS, decide, site, submit, submit_and_process
from web import Web, web

from dagmaster.model.access import Role
from dagmaster.store.connect import opened
from dagmaster.store.events import count_changes

LISTS = ("review", "assets", "requests")
OTHER = {"platform_id": "arcgis", "platform_refs": {"item_id": "gis-1"}}


async def listed(api: Web, query: str = "", **options: Any) -> set[str]:
    """The assets in the list."""
    return set(re.findall(r'id="asset-(\w+)"', await api.get(f"/ui/assets{query}", **options)))


async def test_an_empty_database_explains_how_to_submit(dsn: str) -> None:
    async with web(dsn) as api:
        page = await api.get("/ui/assets")
        assert "No assets yet" in page
        assert "curl http://127.0.0.1/api/v1/submit" in page
        assert "Authorization" not in page
        assert "Nothing to review" in await api.get("/ui/review")
        assert "No requests yet" in await api.get("/ui/requests")
        assert "Not found" in await api.get(f"/ui/assets/{ASSET_ID}", 404)


async def test_assets_are_found_by_reference_and_state(dsn: str) -> None:
    async with site(dsn) as api:
        await submit_and_process(api, platform_refs={**REFS, "version_id": "1.0"})
        other = (await submit_and_process(api, workflow_id="broken", **OTHER))["asset_id"]
        assert await listed(api) == {ASSET_ID, other}
        for query in (
            "text=0038272",
            "text=dataset_id=0038272",
            "text=dataset_id=0038272+resource_id=shapefile",
            "text=1.0",
            f"text={ASSET_ID}",
            "platform=ddh",
            "processing=completed",
        ):
            assert await listed(api, f"?{query}") == {ASSET_ID}, query
        for query in ("platform=arcgis", "processing=failed", "text=gis-1"):
            assert await listed(api, f"?{query}") == {other}, query
        for query in ("clearance=uncleared", "approval=pending_review", "approval=nonsense"):
            assert await listed(api, f"?{query}") == {ASSET_ID, other}, query
        for query in ("text=003", "text=resource_id=0038272", "clearance=public", "approval=approved", "offset=2"):
            assert await listed(api, f"?{query}") == set(), query
        assert "No matching assets" in await api.get("/ui/assets?text=003")


async def test_only_operators_see_deleted_assets(dsn: str) -> None:
    async with site(dsn) as api:
        await submit_and_process(api, version_label="spring")
        await api.ask("DELETE", f"/api/v1/assets/{ASSET_ID}", 200, params={"reason": "a duplicate"})
        viewer, operator = await api.key("eva", Role.VIEWER), await api.key("ann", Role.OPERATOR)
        assert await listed(api, headers=operator) == set()
        assert await listed(api, "?deleted=true", headers=viewer) == set()
        assert await listed(api, "?deleted=true", headers=operator) == {ASSET_ID}
        await api.get(f"/ui/assets/{ASSET_ID}", 404, headers=viewer)
        page = await api.get(f"/ui/assets/{ASSET_ID}", headers=operator)
        assert "This asset was deleted" in page
        assert "data-decide=" not in page
        assert "a duplicate" in await api.get(f"/ui/assets/{ASSET_ID}?tab=history", headers=operator)


async def test_viewers_see_everything_and_cannot_decide(dsn: str) -> None:
    async with site(dsn) as api:
        submitted = await submit_and_process(api, version_label="spring")
        keys = {role: await api.key(role, role) for role in Role}
        paths = ["/ui/review", f"/ui/assets/{ASSET_ID}"]
        for path in paths:
            for role in (Role.ADMIN, Role.OPERATOR, Role.REVIEWER):
                assert f"/api/v1/assets/{ASSET_ID}/versions/0/approve" in await api.get(path, headers=keys[role])
            seen = await api.get(path, headers=keys[Role.VIEWER])
            assert "spring" in seen
            assert "data-decide=" not in seen
        for path in [*paths, *(f"/ui/{name}" for name in LISTS)]:
            await api.get(path, 403, headers=keys[Role.PARTNER])
        head = await api.get(f"/ui/jobs/{submitted['job_id']}", headers=keys[Role.VIEWER])
        assert f'href="/ui/assets/{ASSET_ID}#version-0"' in head


async def test_a_platform_reviewer_sees_only_that_platform(dsn: str) -> None:
    async with site(dsn) as api:
        own = await submit_and_process(api)
        other = await submit_and_process(api, **OTHER)
        reviewer = await api.key("hub", Role.REVIEWER, platform_id="ddh")
        assert await listed(api, headers=reviewer) == {ASSET_ID}
        assert await listed(api, "?platform=arcgis", headers=reviewer) == {ASSET_ID}
        await api.get(f"/ui/assets/{other['asset_id']}", 404, headers=reviewer)
        for name in LISTS:
            page = await api.get(f"/ui/{name}", headers=reviewer)
            assert ASSET_ID in page
            assert other["asset_id"] not in page
            # Jobs and the fleet belong to all platforms, so there are no links to them.
            assert own["job_id"] in page or name == "assets"
            assert not re.search(r'href="/ui/(jobs|workflows|workers|")', page)
        assert await api.get("/ui/palette?text=ingest", headers=reviewer) == []
        key = reviewer["Authorization"].removeprefix("Bearer ")
        answer = await api.client.post("/ui/login", data={"key": key})
        assert answer.headers["location"] == "/ui/review"


async def test_assets_ready_for_review_come_first(dsn: str) -> None:
    async with site(dsn) as api:
        failed = (await submit_and_process(api, workflow_id="broken", **OTHER))["asset_id"]
        await submit_and_process(api)
        assert "1 version waits for review" in await api.get("/ui/")
        page = await api.get("/ui/review")
        assert re.findall(r'id="review-(\w+)"', page) == [ASSET_ID, failed]
        assert "the file is not a raster" in page
        assert f"{failed}/versions/0/approve" not in page
        assert f"{failed}/versions/0/reject" in page
        await decide(api, "/reject", {"reason": "blurred"})
        assert ASSET_ID not in await api.get("/ui/review")
        assert "for review" not in await api.get("/ui/")


async def test_a_request_is_found_by_id_key_and_correlation_id(dsn: str) -> None:
    async with site(dsn) as api:
        await submit_and_process(api, request_id="r-1", idempotency_key="key-1", correlation_id="order-7")
        await submit_and_process(api, request_id="r-2", workflow_id="broken", **OTHER)

        async def request_ids(query: str) -> list[str]:
            return re.findall(r'id="request-([\w-]+)"', await api.get(f"/ui/requests?{query}"))

        assert await request_ids("") == ["r-2", "r-1"]
        for text in ("r-1", "key-1", "order-7"):
            assert await request_ids(f"text={text}") == ["r-1"], text
        assert await request_ids("text=r-2") == ["r-2"]
        assert await request_ids("status=failed") == ["r-2"]
        assert await request_ids("status=failed&text=r-1") == []
        page = await api.get("/ui/requests?text=order-7")
        assert f'href="/ui/assets/{ASSET_ID}#version-0"' in page


async def test_the_history_lists_decisions_newest_first(dsn: str) -> None:
    async with site(dsn) as api:
        await submit_and_process(api)
        ada = await api.key("ada", Role.REVIEWER)
        await decide(api, "/approve", {"clearance_level": "ouo", "comment": "fine at all scales"}, headers=ada)
        page = await api.get(f"/ui/assets/{ASSET_ID}?tab=history", headers=ada)
        titles = re.findall(r'<div class="event-text"><span>([^<]+)', page)
        assert titles[:3] == [
            "Version 0 approved",
            "Asset cleared for official use only",
            "Processing of version 0 completed",
        ]
        assert titles[-1] == "Asset created"
        assert "by ada: “fine at all scales”" in page


async def test_a_decision_notifies_open_pages(dsn: str) -> None:
    async with site(dsn, runs=False) as api, opened(dsn, application="test") as conn:
        await submit(api)
        before = await count_changes(conn)
        await decide(api, "/clearance/cleared")
        assert await count_changes(conn) > before
