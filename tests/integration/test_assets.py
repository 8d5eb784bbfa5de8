"""Partners submit versions of assets, reviewers decide on them, and jobs process them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from fleet import graph, single, task
from web import Web, web

from dagmaster.model.access import Role
from dagmaster.model.asset import PROCESSING_BY_JOB_STATUS, ProcessingStatus
from dagmaster.model.graph import Graph
from dagmaster.model.states import JobStatus

REFS = {"dataset_id": "0038272", "resource_id": "shapefile"}
ASSET_ID = "a9234e9e7b1ae7c5151568522b54db33"
OUTPUTS = {
    "blob_path": "silver/ddh/0038272.tif",
    "table_name": "geo.ddh_0038272",
    "stac_item_id": "item-7",
    "stac_collection_id": "collection-7",
    "content_hash": "sha256:abc",
}


def ingest(workflow_id: str = "ingest", handler: str = "deliver") -> Graph:
    inputs = {"source": "string", "asset_id": "string", "version_ordinal": "integer"}
    return graph({"work": task(handler, "END")}, workflow_id, start="work", inputs=inputs)


def export(handler: str = "publish") -> Graph:
    inputs = {"asset_id": "string", "version_ordinal": "integer", "blob_path": "string"}
    params = {name: f"{{{{ inputs.{name} }}}}" for name in inputs}
    return graph({"copy": task(handler, "END", params=params)}, "adf_export", start="copy", inputs=inputs)


async def deliver(ctx: Any) -> dict[str, Any]:
    return {**OUTPUTS, "bbox": [-105.9, 40.1, -105.4, 40.6], "rows": 7}


async def publish(ctx: Any) -> dict[str, Any]:
    return {"external_blob_path": f"public/{ctx.params['blob_path']}", "adf_run_id": "run-1"}


async def explode(ctx: Any) -> dict[str, Any]:
    raise RuntimeError("the file is not a raster")


@asynccontextmanager
async def site(dsn: str, *graphs: Graph, runs: bool = True) -> AsyncIterator[Web]:
    functions = {"deliver": deliver, "publish": publish, "explode": explode}
    graphs = graphs or (ingest(), ingest("broken", "explode"), export())
    async with web(dsn, *graphs, runs=runs, functions=functions) as api:
        yield api


BODY = {
    "workflow_id": "ingest",
    "platform_id": "ddh",
    "platform_refs": REFS,
    "data_type": "vector",
    "input_params": {"source": "bronze/a.zip"},
}


async def submit(api: Web, status: int = 201, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    return await api.post("/api/v1/submit", {**BODY, **fields}, status, headers=headers)


async def submit_and_process(api: Web, **fields: Any) -> Any:
    submitted = await submit(api, **fields)
    await api.fleet.ended(int(submitted["job_id"]))
    return submitted


async def decide(api: Web, path: str, body: Any = None, status: int = 200, **options: Any) -> Any:
    return await api.post(f"/api/v1/assets/{ASSET_ID}{path}", body, status, **options)


async def events(api: Web) -> list[str]:
    history = await api.get(f"/api/v1/assets/{ASSET_ID}/history")
    return [event["event_type"] for event in history["items"]]


async def test_a_submission_becomes_a_processed_version_with_the_outputs_of_its_job(dsn: str) -> None:
    async with site(dsn) as api:
        submitted = await submit_and_process(api, version_label="v1.0", platform_refs={**REFS, "version_id": "1.0"})
        assert submitted["asset_id"] == ASSET_ID
        assert (submitted["version_ordinal"], submitted["revision"]) == (0, 1)
        asset = await api.get(f"/api/v1/assets/{ASSET_ID}")
        assert asset["platform_refs"] == REFS
        assert asset["latest_approved_version_ordinal"] is None
        [version] = asset["versions"]
        assert {name: version[name] for name in OUTPUTS} == OUTPUTS
        assert version["bbox"] == [-105.9, 40.1, -105.4, 40.6]
        assert (version["approval_state"], version["processing_status"]) == ("pending_review", "completed")
        assert version["platform_refs"] == {**REFS, "version_id": "1.0"}
        job = await api.get(f"/api/v1/jobs/{submitted['job_id']}")
        assert (job["asset_id"], job["version_ordinal"]) == (ASSET_ID, 0)
        assert job["input_params"] == {"source": "bronze/a.zip", "asset_id": ASSET_ID, "version_ordinal": 0}
        request = await api.get(f"/api/v1/requests/{submitted['request_id']}")
        assert (request["status"], request["job_id"]) == ("completed", submitted["job_id"])
        assert await events(api) == [
            "asset_created",
            "version_submitted",
            "processing_started",
            "processing_completed",
        ]


async def test_the_asset_of_a_job_cannot_be_forged_in_its_inputs(dsn: str) -> None:
    async with site(dsn, runs=False) as api:
        forged = {"source": "bronze/a.zip", "asset_id": "other", "version_ordinal": 7}
        submitted = await submit(api, input_params=forged)
        job = await api.get(f"/api/v1/jobs/{submitted['job_id']}")
        assert job["input_params"] == {"source": "bronze/a.zip", "asset_id": ASSET_ID, "version_ordinal": 0}


async def test_a_failed_job_stores_its_error_on_the_version_which_can_be_resubmitted(dsn: str) -> None:
    async with site(dsn) as api:
        await submit_and_process(api, workflow_id="broken")
        [version] = (await api.get(f"/api/v1/assets/{ASSET_ID}"))["versions"]
        assert version["processing_status"] == "failed"
        assert "the file is not a raster" in version["processing_error"]
        refused = await decide(api, "/approve", {"clearance_level": "ouo"}, 409)
        assert "processing is failed" in refused["detail"]
        again = await submit_and_process(api, resubmit=True)
        assert (again["version_ordinal"], again["revision"]) == (0, 2)
        [version] = (await api.get(f"/api/v1/assets/{ASSET_ID}"))["versions"]
        assert (version["processing_status"], version["processing_error"], version["revision"]) == (
            "completed",
            None,
            2,
        )


async def test_no_version_is_accepted_while_another_is_unresolved(dsn: str) -> None:
    async with site(dsn) as api:
        await submit_and_process(api, version_label="spring")
        refused = await submit(api, 409)
        assert "version 0 ('spring') is pending_review" in refused["detail"]
        await decide(api, "/reject", {"reason": "blurred"})
        refused = await submit(api, 409)
        assert "rejected: resubmit or delete it first" in refused["detail"]
        again = await submit_and_process(api, resubmit=True)
        assert (again["version_ordinal"], again["revision"]) == (0, 2)
        await decide(api, "/approve", {"clearance_level": "ouo"})
        assert (await submit_and_process(api))["version_ordinal"] == 1
        await api.ask("DELETE", f"/api/v1/assets/{ASSET_ID}/versions/1", 200)
        assert (await submit(api))["version_ordinal"] == 2


async def test_one_of_fifty_concurrent_submissions_is_accepted(dsn: str) -> None:
    async with site(dsn, runs=False) as api:
        answers = await asyncio.gather(
            *(
                api.client.post("/api/v1/submit", json={**BODY, "input_params": {"source": str(number)}})
                for number in range(50)
            )
        )
        assert sorted(answer.status_code for answer in answers) == [201, *[409] * 49]
        assert (await api.get("/api/v1/jobs?limit=100"))["items"][0]["status"] == "pending"
        assert len((await api.get("/api/v1/jobs?limit=100"))["items"]) == 1
        assert len((await api.get("/api/v1/requests"))["items"]) == 1


async def test_a_refused_submission_stores_nothing(dsn: str) -> None:
    async with site(dsn, runs=False) as api:
        for fields, status in (
            ({"platform_id": "nowhere"}, 404),
            ({"workflow_id": "nothing"}, 404),
            ({"platform_refs": {"dataset_id": "7"}}, 422),
            ({"platform_refs": {**REFS, "dataset_id": ["7"]}}, 422),
            ({"data_type": None}, 422),
            ({"input_params": {"colour": "red"}}, 422),
        ):
            await submit(api, status, **fields)
        with psycopg.connect(dsn) as conn:
            for table in ("geospatial_assets", "asset_versions", "asset_events", "dag_api_requests", "dag_jobs"):
                assert conn.execute(f"SELECT count(*) FROM dagapp.{table}").fetchone() == (0,), table


async def test_a_repeated_request_returns_the_first_result(dsn: str) -> None:
    async with site(dsn, ingest(), single(workflow_id="plain"), runs=False) as api:
        first = await submit(api, request_id="r-1")
        again = await submit(api, 200, request_id="r-1")
        assert (again["job_id"], again["asset_id"], again["version_ordinal"]) == (first["job_id"], ASSET_ID, 0)
        assert not again["is_new"]
        other = await submit(api, 409, request_id="r-1", version_label="other")
        assert "request 'r-1'" in other["detail"]
        keyed = await submit(api, platform_refs={**REFS, "dataset_id": "8"}, idempotency_key="k")
        same = await submit(api, 200, platform_refs={**REFS, "dataset_id": "8"}, idempotency_key="k")
        assert same["request_id"] == keyed["request_id"]
        plain = await api.post("/api/v1/submit", {"workflow_id": "plain", "request_id": "p-1"}, 201)
        assert plain["asset_id"] is None
        job = await api.get(f"/api/v1/jobs/{plain['job_id']}")
        assert job["correlation_id"] == "p-1"


async def test_an_asset_is_identified_by_the_references_that_its_platform_requires(dsn: str) -> None:
    async with site(dsn, runs=False) as api:
        numbers = await submit(api, platform_refs={"dataset_id": "0038272", "resource_id": "shapefile", "note": "x"})
        assert numbers["asset_id"] == ASSET_ID
        other = await submit(api, platform_refs={"dataset_id": 38272, "resource_id": "shapefile"})
        assert other["asset_id"] != ASSET_ID
        refused = await submit(api, 409, platform_refs=REFS, data_type="raster")
        assert "is a vector dataset" in refused["detail"]
        with psycopg.connect(dsn) as conn, pytest.raises(psycopg.Error, match="cannot change"):
            conn.execute("UPDATE dagapp.geospatial_assets SET platform_refs = '{}'")
        matches = await api.get("/api/v1/assets", params={"refs": '{"dataset_id": "0038272"}'})
        assert [asset["asset_id"] for asset in matches["items"]] == [ASSET_ID]
        assert (await api.get("/api/v1/assets", params={"refs": '{"note": "x"}'}))["items"] == matches["items"]
        assert (await api.get("/api/v1/assets", params={"platform_id": "arcgis"}))["items"] == []


async def test_approving_with_public_clearance_exports_the_version(dsn: str) -> None:
    async with site(dsn) as api:
        await submit_and_process(api)
        refused = await decide(api, "/approve", {}, 409)
        assert "the asset is not cleared" in refused["detail"]
        approved = await decide(api, "/approve", {"clearance_level": "public", "reviewer": "ana"})
        assert approved["asset"]["clearance_state"] == "public"
        assert approved["asset"]["latest_approved_version_ordinal"] == 0
        assert (approved["version"]["approval_by"], approved["warnings"]) == ("ana", [])
        export_job = approved["version"]["export_job_id"]
        await api.fleet.ended(int(export_job))
        version = await api.get(f"/api/v1/assets/{ASSET_ID}/versions/latest")
        assert version["external_blob_path"] == "public/silver/ddh/0038272.tif"
        assert version["adf_run_id"] == "run-1"
        assert version["blob_path"] == "silver/ddh/0038272.tif"
        job = await api.get(f"/api/v1/jobs/{export_job}")
        assert (job["asset_id"], job["version_ordinal"]) == (ASSET_ID, 0)
        assert (await events(api))[-5:] == [
            "asset_cleared",
            "asset_made_public",
            "version_approved",
            "export_queued",
            "export_completed",
        ]
        assert "is approved" in (await decide(api, "/versions/0/reject", {"reason": "late"}, 409))["detail"]


async def test_without_the_export_workflow_the_approval_succeeds_with_a_warning(dsn: str) -> None:
    async with site(dsn, ingest()) as api:
        await submit_and_process(api)
        approved = await decide(api, "/approve", {"clearance_level": "public"})
        assert "'adf_export'" in approved["warnings"][0]
        assert approved["version"]["approval_state"] == "approved"
        assert (await decide(api, "/versions/0/export", status=404))["code"] == "unknown_workflow"


async def test_public_clearance_exports_the_latest_approved_version(dsn: str) -> None:
    async with site(dsn) as api:
        await submit_and_process(api)
        assert (await decide(api, "/clearance/cleared", {"reason": "checked"}))["clearance_state"] == "ouo"
        approved = await decide(api, "/approve", {})
        assert approved["version"]["export_job_id"] is None
        cleared = await decide(api, "/clearance/public")
        await api.fleet.ended(int(cleared["export_job_id"]))
        again = await decide(api, "/clearance/public")
        assert (again["export_job_id"], again["version"]) == (None, cleared["version"])


async def test_reprocessing_creates_a_revision_and_keeps_ordinal_and_approval(dsn: str) -> None:
    async with site(dsn) as api:
        await submit_and_process(api)
        await decide(api, "/approve", {"clearance_level": "ouo"})
        again = await decide(api, "/versions/0/reprocess", status=201)
        assert (again["version_ordinal"], again["revision"], again["workflow_id"]) == (0, 2, "ingest")
        await api.fleet.ended(int(again["job_id"]))
        version = await api.get(f"/api/v1/assets/{ASSET_ID}/versions/0")
        assert (version["approval_state"], version["revision"], version["processing_status"]) == (
            "approved",
            2,
            "completed",
        )


async def test_a_deleted_asset_is_visible_only_in_its_history(dsn: str) -> None:
    async with site(dsn, runs=False) as api:
        await submit(api)
        await api.ask("DELETE", f"/api/v1/assets/{ASSET_ID}?reason=duplicate", 200)
        await api.get(f"/api/v1/assets/{ASSET_ID}", 404)
        assert (await api.get("/api/v1/assets"))["items"] == []
        assert "is deleted" in (await submit(api, 409))["detail"]
        await decide(api, "/approve", {"clearance_level": "ouo"}, 404)
        everything = await api.get("/api/v1/assets?include_deleted=true")
        assert everything["items"][0]["deleted_at"] is not None
        history = await api.get(f"/api/v1/assets/{ASSET_ID}/history?include_deleted=true")
        assert history["items"][-1]["reason"] == "duplicate"


@pytest.mark.parametrize("current", list(ProcessingStatus))
def test_the_trigger_updates_a_version_as_the_model_does(dsn: str, current: ProcessingStatus) -> None:
    for status, move in PROCESSING_BY_JOB_STATUS.items():
        before = JobStatus.FAILED if status is JobStatus.RUNNING else JobStatus.RUNNING
        with psycopg.connect(dsn) as conn:
            conn.execute(
                """INSERT INTO dagapp.geospatial_assets (asset_id, platform_id, platform_refs, data_type)
                   VALUES ('a', 'ddh', '{}', 'raster');"""
            )
            conn.execute(
                """INSERT INTO dagapp.asset_versions (asset_id, version_ordinal, processing_status, current_job_id)
                   VALUES ('a', 0, %s, 7)""",
                [current],
            )
            conn.execute(
                """INSERT INTO dagapp.dag_jobs (job_id, workflow_id, workflow_version, workflow_hash, status, priority,
                       asset_id, version_ordinal) VALUES (7, 'w', 1, 'h', %s, 0, 'a', 0)""",
                [before],
            )
            conn.execute("UPDATE dagapp.dag_jobs SET status = %s WHERE job_id = 7", [status])
            moved = conn.execute("SELECT processing_status FROM dagapp.asset_versions").fetchone()
            events = conn.execute("SELECT event_type FROM dagapp.asset_events").fetchall()
            conn.rollback()
        is_legal = current in move.sources
        assert moved == ((move.target if is_legal else current),), (current, status)
        assert events == ([(move.event,)] if is_legal else []), (current, status)


async def test_a_superseded_job_changes_nothing(dsn: str) -> None:
    async with site(dsn, runs=False) as api:
        first = await submit(api)
        await decide(api, "/reject", {"reason": "wrong file"})
        second = await submit(api, resubmit=True)
        with psycopg.connect(dsn, autocommit=True) as conn:
            mail = conn.execute("SELECT kind FROM dagapp.dag_mailbox WHERE job_id = %s", [first["job_id"]]).fetchall()
            assert ("cancel",) in mail
            conn.execute("UPDATE dagapp.dag_jobs SET status = 'cancelled' WHERE job_id = %s", [first["job_id"]])
        version = await api.get(f"/api/v1/assets/{ASSET_ID}/versions/0")
        assert (version["current_job_id"], version["processing_status"]) == (second["job_id"], "processing")


async def test_a_partner_sees_and_submits_only_for_its_own_platform(dsn: str) -> None:
    async with site(dsn, runs=False) as api:
        await api.key("me")
        ddh = await api.key("ddh", Role.PARTNER, platform_id="ddh")
        arcgis = await api.key("arcgis", Role.PARTNER, platform_id="arcgis")
        loose = await api.key("loose", Role.PARTNER)
        await submit(api, 403, arcgis)
        await submit(api, 403, loose)
        submitted = await submit(api, headers=ddh)
        path = f"/api/v1/assets/{ASSET_ID}"
        assert (await api.get(path, headers=ddh))["asset_id"] == ASSET_ID
        assert (await api.get(path, 404, headers=arcgis))["code"] == "unknown_asset"
        assert (await api.get("/api/v1/assets", headers=arcgis))["items"] == []
        await api.get(f"/api/v1/requests/{submitted['request_id']}", 404, headers=arcgis)
        await api.post(f"{path}/approve", {}, 403, headers=ddh)
        await api.ask("DELETE", f"{path}/versions/0", 404, headers=arcgis)
        await api.ask("DELETE", f"{path}/versions/0", 200, headers=ddh)


async def test_data_is_served_according_to_approval_clearance_and_exposure(dsn: str) -> None:
    async with site(dsn) as api:
        await submit_and_process(api)
        admin = await api.key("me")
        viewer = await api.key("viewer", Role.VIEWER)
        reviewer = await api.key("ana", Role.REVIEWER, platform_id="ddh")
        foreign = await api.key("ben", Role.REVIEWER, platform_id="arcgis")
        service = f"/assets/{ASSET_ID}/service"

        async def statuses(path: str = service) -> list[int]:
            answers = [await api.client.get(path, headers=headers) for headers in ({}, viewer, reviewer)]
            return [answer.status_code for answer in answers]

        assert await statuses() == [404, 404, 404]
        assert await statuses(f"{service}?preview=true&version=0") == [403, 403, 200]
        assert (await api.client.get(f"{service}?preview=true&version=0", headers=foreign)).status_code == 403
        preview = await api.get(f"/tiles/{ASSET_ID}?preview=true&version=0", headers=reviewer)
        assert (preview["is_preview"], preview["blob_path"]) == (True, OUTPUTS["blob_path"])
        await decide(api, "/approve", {"clearance_level": "ouo"}, headers=admin)
        assert await statuses() == [404, 200, 200]
        cleared = await decide(api, "/clearance/public", headers=admin)
        await api.fleet.ended(int(cleared["export_job_id"]))
        assert await statuses() == [200, 200, 200]
        outside = await api.get(f"/tiles/{ASSET_ID}?version=latest")
        assert outside["blob_path"] == "public/silver/ddh/0038272.tif"
        second = await submit(api, headers=admin)
        await api.fleet.ended(int(second["job_id"]))
        assert await statuses(f"{service}?version=1") == [404, 404, 404]
        await decide(api, "/approve", {}, headers=admin)
        assert (await api.get(service))["version_ordinal"] == 1
        assert await statuses(f"{service}?version=0") == [404, 200, 200]
        await api.ask("PATCH", f"/api/v1/assets/{ASSET_ID}", 200, json={"exposure_mode": "all_versions"}, headers=admin)
        assert await statuses(f"{service}?version=0") == [200, 200, 200]
        await api.ask("DELETE", f"/api/v1/assets/{ASSET_ID}/versions/1", 200, headers=admin)
        assert (await api.get(service))["version_ordinal"] == 0
        assert (await api.client.get(f"{service}?version=one")).status_code == 422
