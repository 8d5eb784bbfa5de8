"""Partners submit and poll through the gateway, reviewers decide; each sees only its own data."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from gateway import OUTPUTS, REFS, Gateway, Site, gateway, site

STATUS_FIELDS = {
    "request_id",
    "workflow_id",
    "status",
    "submitted_at",
    "completed_at",
    "result",
    "error",
    "progress",
}


@pytest.fixture(scope="module")
def installed(shared_dsn: str) -> Iterator[Site]:
    with tempfile.TemporaryDirectory() as folder, site(shared_dsn, Path(folder)) as installation:
        yield installation


@pytest.fixture
async def api(installed: Site) -> AsyncIterator[Gateway]:
    async with gateway(installed) as site:
        yield site


def refs() -> dict[str, str]:
    """References that no other test uses."""
    return {"dataset_id": str(uuid4()), "resource_id": "shapefile"}


async def submit_version(
    api: Gateway, source: str = "good", key: str = "partner", **fields: object
) -> dict[str, object]:
    body = {"workflow_id": "ingest", "input_params": {"source": source}, "data_type": "vector", **fields}
    accepted: dict[str, object] = await api.post("/api/platform/submit", {"platform_refs": refs(), **body}, 202, key)
    return accepted


# Submit and poll.


async def test_a_partner_submits_polls_and_gets_a_result_without_internals(api: Gateway) -> None:
    body = {"workflow_id": "ingest", "input_params": {"source": "good"}, "platform_refs": REFS, "data_type": "vector"}
    accepted = await api.post("/api/platform/submit", body, 202)
    assert set(accepted) == {"request_id", "workflow_id", "submitted_at", "status", "asset_id", "version_ordinal"}
    assert (accepted["status"], accepted["workflow_id"]) == ("accepted", "ingest")
    assert accepted["asset_id"] == "a9234e9e7b1ae7c5151568522b54db33"
    assert str(UUID(accepted["request_id"])) == accepted["request_id"]
    ended = await api.until(accepted["request_id"], "completed", "failed")
    assert set(ended) == STATUS_FIELDS
    assert (ended["status"], ended["progress"], ended["error"]) == ("completed", 100.0, None)
    assert ended["result"] == {
        **OUTPUTS,
        "rows": 7,
        "echo": [{"place": {"note": ended["result"]["echo"][0]["place"]["note"]}}],
    }
    [job] = api.site.rows("SELECT * FROM dagapp.dag_jobs WHERE job_id = %s", api.job_of(accepted["request_id"]))
    assert job["correlation_id"] == accepted["request_id"]
    assert job["submitted_by"] == "partner"


async def test_a_plain_job_belongs_to_the_platform_of_its_key(api: Gateway) -> None:
    request_id = await api.submit()
    await api.until(request_id, "completed")
    [row] = api.site.rows("SELECT * FROM dagapp.dag_api_requests WHERE request_id = %s", request_id)
    assert (row["platform_id"], row["asset_id"], row["submitted_by"]) == ("ddh", None, "partner")


async def test_the_error_of_a_failed_request_contains_only_the_reason(api: Gateway) -> None:
    ended = await api.until(await api.submit("bad"), "completed", "failed")
    assert ended["status"] == "failed"
    assert ended["error"].startswith("ValueError: band 4 is missing: task *** of job *** by worker *** on ***")
    assert ended["result"] is None


async def test_a_cancelled_request_is_shown_as_failed(api: Gateway) -> None:
    request_id = await api.submit("slow")
    await api.until(request_id, "running")
    await api.post(f"/api/proxy/orchestrator/api/v1/jobs/{api.job_of(request_id)}/cancel", None, 200, "operator")
    ended = await api.until(request_id, "failed")
    assert ended["error"] == "the request was cancelled"


async def test_a_request_outlives_its_job(api: Gateway) -> None:
    request_id = await api.submit()
    await api.until(request_id, "completed")
    api.site.rows("DELETE FROM dagapp.dag_jobs WHERE job_id = %s", api.job_of(request_id))
    ended = await api.get(f"/api/platform/status/{request_id}")
    assert (ended["status"], ended["result"]) == ("completed", None)


async def test_the_same_idempotency_key_returns_the_first_request(api: Gateway) -> None:
    key = str(uuid4())
    first = await api.post("/api/platform/submit", {"workflow_id": "ingest", "idempotency_key": key}, 202)
    again = await api.post("/api/platform/submit", {"workflow_id": "ingest", "idempotency_key": key}, 202)
    assert again["request_id"] == first["request_id"]
    first_at, again_at = (datetime.fromisoformat(accepted["submitted_at"]) for accepted in (first, again))
    assert abs(again_at - first_at) < timedelta(minutes=1)
    other = {"workflow_id": "ingest", "input_params": {"source": "bad"}, "idempotency_key": key}
    refused = await api.post("/api/platform/submit", other, 409)
    assert refused["error"]["code"] == "idempotency_conflict"
    assert first["request_id"] in refused["error"]["message"]
    theirs = await api.post("/api/platform/submit", {"workflow_id": "ingest", "idempotency_key": key}, 202, "other")
    assert theirs["request_id"] != first["request_id"]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"workflow_id": "ingest", "platform_id": "arcgis"}, 403, "this key is for platform 'ddh', not 'arcgis'"),
        ({"workflow_id": "nothing"}, 404, "nothing"),
        ({"workflow_id": "ingest", "platform_refs": {"dataset_id": "1"}, "data_type": "raster"}, 422, "'resource_id'"),
        ({"workflow_id": "ingest", "platform_refs": {"dataset_id": "1"}}, 422, "data_type"),
        ({"workflow_id": "ingest", "version_label": "v1"}, 422, "only with platform_refs"),
        ({"workflow_id": "ingest", "request_id": "mine"}, 422, "request_id"),
        ({"workflow_id": "ingest", "submitted_by": "admin"}, 422, "submitted_by"),
        ({}, 422, "workflow_id"),
    ],
)
async def test_an_unacceptable_submission_is_refused_with_the_reason(
    api: Gateway, body: dict[str, object], status: int, message: str
) -> None:
    refused = await api.post("/api/platform/submit", body, status)
    assert message in refused["error"]["message"]
    assert refused["detail"] == refused["error"]["message"]


async def test_a_second_version_waits_until_the_first_is_resolved(api: Gateway) -> None:
    first = await submit_version(api)
    asset = await api.get(f"/api/assets/{first['asset_id']}")
    body = {"workflow_id": "ingest", "platform_refs": asset["platform_refs"], "data_type": "vector"}
    refused = await api.post("/api/platform/submit", body, 409)
    assert "version 0" in refused["error"]["message"]


# Isolation of platforms.


async def test_a_request_of_another_platform_is_not_found(api: Gateway) -> None:
    request_id = await api.submit()
    path = f"/api/platform/status/{request_id}"
    for key in ("other", "arcgis reviewer"):
        assert (await api.get(path, 404, key))["error"]["code"] == "unknown_request"
    for key in ("partner", "ddh reviewer", "reviewer", "operator", "admin"):
        assert (await api.get(path, key=key))["request_id"] == request_id


async def test_an_asset_of_another_platform_is_not_found(api: Gateway) -> None:
    asset_id = (await submit_version(api))["asset_id"]
    path = f"/api/assets/{asset_id}"
    for suffix in ("", "/versions", "/versions/latest", "/versions/0"):
        refused = await api.get(f"{path}{suffix}", 404, "other")
        assert refused["error"]["message"] == f"there is no asset {asset_id!r}"
    assert (await api.ask("DELETE", f"{path}/versions/0", 404, "other"))["error"]["code"] == "unknown_asset"
    for verb, body in (("approve", {}), ("reject", {"reason": "no"}), ("clearance/public", {})):
        assert (await api.post(f"{path}/{verb}", body, 404, "arcgis reviewer"))["error"]["code"] == "unknown_asset"
    assert (await api.get("/api/assets", key="other"))["items"] == []
    assert (await api.get("/api/assets?platform_id=ddh", key="other"))["items"] == []
    assert {row["platform_id"] for row in (await api.get("/api/assets", key="ddh reviewer"))["items"]} == {"ddh"}


async def test_a_key_sees_only_its_platforms(api: Gateway) -> None:
    assert [row["platform_id"] for row in await api.get("/api/assets/platforms")] == ["ddh"]
    assert {row["platform_id"] for row in await api.get("/api/assets/platforms", key="reviewer")} >= {"arcgis", "ddh"}


# Review.


async def test_a_version_can_be_approved_cleared_published_and_withdrawn(api: Gateway) -> None:
    accepted = await submit_version(api, version_label="2026")
    await api.until(str(accepted["request_id"]), "completed")
    path = f"/api/assets/{accepted['asset_id']}"
    assert (await api.get(f"{path}/versions/latest", 404))["error"]["code"] == "unknown_version"
    uncleared = await api.post("/api/platform/approve", {"request_id": accepted["request_id"]}, 409, "ddh reviewer")
    assert "clear" in uncleared["error"]["message"]
    approved = await api.post(f"{path}/approve", {"clearance_level": "ouo", "comment": "fine"}, 200, "ddh reviewer")
    assert approved["version"]["approval_state"] == "approved"
    assert approved["asset"]["clearance_state"] == "ouo"
    assert (await api.get(f"{path}/versions/latest"))["version_label"] == "2026"
    public = await api.post(f"{path}/clearance/public", {"reason": "asked for"}, 200, "reviewer")
    assert public["clearance_state"] == "public"
    assert "export_job_id" not in public
    [event] = api.site.rows(
        "SELECT actor FROM dagapp.asset_events WHERE asset_id = %s AND event_type = 'version_approved'",
        accepted["asset_id"],
    )
    assert event["actor"] == "ddh reviewer"
    api.site.rows(
        "INSERT INTO dagapp.layer_metadata (asset_id, data_type, display_name, is_external) "
        "VALUES (%s, 'vector', 'x', true)",
        accepted["asset_id"],
    )
    withdrawn = await api.post("/api/platform/unpublish", {"request_id": accepted["request_id"]})
    assert withdrawn["version_count"] == 0
    [warning] = withdrawn["warnings"]
    assert warning.startswith("the published layer is not up to date")
    assert (await api.get(f"{path}/versions"))["items"] == []
    deleted = await api.ask("DELETE", path, 200, "operator")
    assert deleted["warnings"] == [warning]


async def test_a_version_can_be_rejected_with_a_reason_and_resubmitted(api: Gateway) -> None:
    accepted = await submit_version(api)
    await api.until(str(accepted["request_id"]), "completed")
    target = {"asset_id": accepted["asset_id"], "version_ordinal": 0}
    assert "reason" in (await api.post("/api/platform/reject", target, 422, "reviewer"))["error"]["message"]
    rejected = await api.post("/api/platform/reject", {**target, "reason": "wrong bands"}, 200, "reviewer")
    assert rejected["version"]["approval_state"] == "rejected"
    assert (await api.get(f"/api/assets/{accepted['asset_id']}/versions/0"))["approval_reason"] == "wrong bands"
    again = await api.post("/api/platform/submit", {**await _same(api, accepted), "resubmit": True}, 202)
    assert (again["asset_id"], again["version_ordinal"]) == (accepted["asset_id"], 0)


async def _same(api: Gateway, accepted: dict[str, object]) -> dict[str, object]:
    asset = await api.get(f"/api/assets/{accepted['asset_id']}")
    return {"workflow_id": "ingest", "platform_refs": asset["platform_refs"], "data_type": "vector"}


async def test_a_partner_can_withdraw_but_not_decide_otherwise(api: Gateway) -> None:
    accepted = await submit_version(api)
    path = f"/api/assets/{accepted['asset_id']}"
    for verb in ("approve", "reject", "versions/0/approve", "clearance/cleared", "clearance/public"):
        refused = await api.post(f"{path}/{verb}", {"reason": "x"}, 403)
        assert refused["error"]["message"].startswith("a key of role partner may not do that")
    for verb in ("approve", "reject"):
        await api.post(f"/api/platform/{verb}", {"request_id": accepted["request_id"], "reason": "x"}, 403)
    await api.ask("DELETE", path, 403)
    withdrawn = await api.ask("DELETE", f"{path}/versions/0?reason=mistake")
    assert withdrawn["unresolved_ordinal"] is None
    deleted = await api.ask("DELETE", path, 200, "operator")
    assert deleted["asset_id"] == accepted["asset_id"]
    await api.get(path, 404)


async def test_a_decision_targets_a_request_or_an_asset(api: Gateway) -> None:
    for body in ({}, {"request_id": "a", "asset_id": "b"}, {"request_id": "a", "version_ordinal": 1}):
        await api.post("/api/platform/unpublish", body, 422)
    plain = await api.submit()
    refused = await api.post("/api/platform/unpublish", {"request_id": plain}, 404)
    assert refused["error"]["message"].endswith("is not about an asset")


async def test_assets_are_found_by_references_and_states(api: Gateway) -> None:
    accepted = await submit_version(api)
    asset = await api.get(f"/api/assets/{accepted['asset_id']}")
    dataset = asset["platform_refs"]["dataset_id"]
    matches = await api.get("/api/assets", params={"refs": f'{{"dataset_id": "{dataset}"}}'})
    assert [row["asset_id"] for row in matches["items"]] == [accepted["asset_id"]]
    await api.until(str(accepted["request_id"]), "completed")
    query = {"approval_state": "pending_review", "processing_status": "completed", "clearance_state": "uncleared"}
    assert accepted["asset_id"] in {row["asset_id"] for row in (await api.get("/api/assets", params=query))["items"]}
    assert (await api.get("/api/assets", params={"refs": "[1]"}, status=422))["error"]["code"] == "invalid"
    page = await api.get("/api/assets?limit=1")
    assert len(page["items"]) == 1


async def test_concurrent_partners_get_one_request_each(api: Gateway) -> None:
    ids = await asyncio.gather(*(api.submit() for _ in range(20)))
    assert len(set(ids)) == 20
    for request_id in ids:
        assert (await api.until(request_id, "completed"))["request_id"] == request_id
