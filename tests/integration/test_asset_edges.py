"""Edge cases of assets: unusual outputs and references, removed jobs, locks, and ids of other submitters."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
from asset_worlds import move_job
from expired_jobs import age, exported, remove, remove_alone
from fleet import graph, rows, single, task
from psycopg.types.json import Jsonb
from test_assets import ASSET_ID, BODY, REFS, decide, events, export, ingest, site, submit, submit_and_process
from test_callbacks_out import make_calls, options, receiving
from web import Web, web

from dagmaster.model.access import Role
from dagmaster.model.asset import asset_id_of
from dagmaster.model.compile import compile_graph
from dagmaster.model.workflow import InputSpec, InputType, WorkflowNode
from dagmaster.store.archive import Archive
from dagmaster.store.assets import lock_asset
from dagmaster.store.connect import Connection, opened

CLEAR = "a token that nobody may read"


async def version_of(api: Web, ordinal: int = 0, asset_id: str = ASSET_ID) -> Any:
    return await api.get(f"/api/v1/assets/{asset_id}/versions/{ordinal}")


# Outputs.


async def test_an_output_is_taken_from_the_node_that_completed_last(dsn: str) -> None:
    async def download(ctx: Any) -> dict[str, Any]:
        return {"blob_path": "bronze/raw.zip", "content_hash": "sha256:raw"}

    async def convert(ctx: Any) -> dict[str, Any]:
        return {"blob_path": "silver/cog.tif", "content_hash": None}

    steps = graph({"z_first": task("download", "a_last"), "a_last": task("convert", "END")}, "ingest", start="z_first")
    outer = graph({"call": WorkflowNode(workflow="ingest", next=("END",))}, "outer", start="call")
    async with web(dsn, steps, outer, runs=True, functions={"download": download, "convert": convert}) as api:
        body = {**BODY, "input_params": {}}
        for workflow_id, dataset in (("ingest", "direct"), ("outer", "by a child workflow")):
            refs = {**REFS, "dataset_id": dataset}
            submitted = await api.post(
                "/api/v1/submit", {**body, "workflow_id": workflow_id, "platform_refs": refs}, 201
            )
            await api.fleet.ended(int(submitted["job_id"]))
            version = await version_of(api, asset_id=submitted["asset_id"])
            assert (version["blob_path"], version["content_hash"]) == ("silver/cog.tif", "sha256:raw"), dataset


@pytest.mark.parametrize(
    ("output", "outputs"),
    [
        ({"blob_path": 7, "table_name": ["t"], "stac_item_id": None, "bbox": "all"}, {}),
        ({"blob_path": "x" * 3_000_000, "table_name": "", "content_hash": "h" * 2000}, {"content_hash": "h" * 2000}),
        ({"bbox": [1, 2, 3]}, {}),
        ({"bbox": [1, 2, 3, "4"]}, {}),
        ({"deep": {"blob_path": "not/ours"}}, {}),
        (["blob_path"], {}),
        ("blob_path", {}),
        ({"blob_path": "é/☃.tif"}, {"blob_path": "é/☃.tif"}),
    ],
)
def test_malformed_outputs_are_ignored(shared_dsn: str, output: Any, outputs: dict[str, Any]) -> None:
    with psycopg.connect(shared_dsn) as conn:
        add_node(conn, output)
        assert conn.execute("SELECT dagapp.job_outputs(7)").fetchone() == (outputs,)
        conn.rollback()


@pytest.mark.parametrize("number", ["1e400", "-1e400", "1e-400", "0"])
async def test_an_out_of_range_number_in_a_bounding_box_does_not_stop_the_job(dsn: str, number: str) -> None:
    async with site(dsn, runs=False) as api:
        job_id = int((await submit(api))["job_id"])
        async with opened(dsn, application="test") as conn:
            await move_job(conn, job_id, "running")
            await conn.execute(
                f"""UPDATE dagapp.dag_node_states SET status = 'completed', completed_at = now(),
                        output = '{{"bbox": [0, 0, 1, {number}]}}' WHERE job_id = $1 AND node_id = 'work'""",
                [job_id],
            )
            await conn.execute("UPDATE dagapp.dag_jobs SET status = 'completed' WHERE job_id = $1", [job_id])
        expected = None if number.endswith("e400") else [0, 0, 1, 0]
        version = await version_of(api)
        assert (version["processing_status"], version["bbox"]) == ("completed", expected)


def add_node(conn: psycopg.Connection[Any], output: Any) -> None:
    conn.execute(
        """INSERT INTO dagapp.dag_node_states (job_id, node_id, status, max_retries, output, completed_at)
           VALUES (7, 'work', 'completed', 0, %s, now())""",
        [Jsonb(output)],
    )


def test_the_nodes_of_a_large_job_are_read_once(shared_dsn: str) -> None:
    with psycopg.connect(shared_dsn) as conn:
        add_node(conn, {"blob_path": "silver/a.tif"})
        conn.execute(
            """INSERT INTO dagapp.dag_node_states (job_id, node_id, status, max_retries, parent_node_id, output)
               SELECT 7, 'spread__' || n, 'completed', 0, 'spread', '{"blob_path": "part"}'
               FROM generate_series(1, 10000) AS n"""
        )
        before = node_reads(conn)
        assert table_scans(conn) == 0
        assert conn.execute("SELECT dagapp.job_outputs(7)").fetchone() == ({"blob_path": "silver/a.tif"},)
        assert node_reads(conn) - before <= 10_001
        assert table_scans(conn) == 0
        conn.rollback()


def node_reads(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute(
        """SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables
           WHERE relname = 'dag_node_states'"""
    ).fetchone()
    assert row is not None
    return int(row[0])


def table_scans(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute(
        "SELECT sum(seq_scan) FROM pg_stat_xact_user_tables WHERE relname IN ('dag_jobs', 'dag_node_states')"
    ).fetchone()
    assert row is not None
    return int(row[0])


async def test_a_reprocessed_version_shows_when_reprocessing_started(dsn: str) -> None:
    async with site(dsn, runs=False) as api, opened(dsn, application="test") as conn:
        first = await submit(api)
        for status in ("running", "completed"):
            await move_job(conn, int(first["job_id"]), status)
        second = await decide(api, "/versions/0/reprocess", status=201)
        assert (await version_of(api))["processing_started_at"] is None
        await move_job(conn, int(second["job_id"]), "running")
        version = await version_of(api)
        assert version["processing_started_at"] is not None and version["processing_completed_at"] is None
        assert (await events(api))[-1] == "version_reprocessed"


def test_jobs_without_an_asset_do_not_call_the_trigger_function(shared_dsn: str) -> None:
    with psycopg.connect(shared_dsn) as conn:
        conn.execute("SET LOCAL track_functions = 'all'")
        for job_id, asset_id in ((1, None), (2, "a")):
            conn.execute(
                """INSERT INTO dagapp.dag_jobs (job_id, workflow_id, workflow_version, workflow_hash, status, priority,
                       asset_id, version_ordinal) VALUES (%s, 'w', 1, 'h', 'pending', 0, %s, 0)""",
                [job_id, asset_id],
            )
            for status in ("running", "running", "completed"):
                conn.execute("UPDATE dagapp.dag_jobs SET status = %s WHERE job_id = %s", [status, job_id])
            calls = conn.execute(
                "SELECT calls FROM pg_stat_xact_user_functions WHERE funcname = 'follow_job'"
            ).fetchone()
            assert calls == (None if asset_id is None else (2,))
        conn.rollback()


# Locks.


async def test_a_job_ends_while_its_asset_is_being_decided_on(dsn: str, conn: Connection) -> None:
    async with site(dsn) as api:
        first = await submit_and_process(api)
        await decide(api, "/approve", {"clearance_level": "ouo"})
        async with conn.transaction():
            await lock_asset(conn, first["asset_id"])
            job_id = await api.fleet.value("SELECT current_job_id FROM dagapp.asset_versions")
            await rows(dsn, "UPDATE dagapp.asset_versions SET processing_status = 'processing'")
            async with asyncio.timeout(60), opened(dsn, application="test") as owner:
                await owner.execute("UPDATE dagapp.dag_jobs SET status = 'running' WHERE job_id = $1", [job_id])
                await owner.execute("UPDATE dagapp.dag_jobs SET status = 'completed' WHERE job_id = $1", [job_id])
        assert (await version_of(api))["processing_status"] == "completed"


# Removed jobs.


async def test_asset_requests_outlive_their_jobs_and_other_requests_do_not(
    dsn: str, conn: Connection, tmp_path: Path
) -> None:
    async with site(dsn, ingest(), single(workflow_id="plain")) as api:
        version = await submit_and_process(api, request_id="about-an-asset")
        plain = await api.post("/api/v1/submit", {"workflow_id": "plain", "request_id": "plain"}, 201)
        job_ids = [int(version["job_id"]), int(plain["job_id"])]
        jobs = await api.fleet.ended(*job_ids)
        await age(dsn, [job["job_id"] for job in jobs], 40)
        await remove_alone(conn)
        assert (await remove(conn, export=Archive(tmp_path).export)).jobs == 2
        archived = {row["job_id"]: (row["asset_id"], row["version_ordinal"]) for row in exported(tmp_path, "jobs")}
        assert archived == {job_ids[0]: (ASSET_ID, 0), job_ids[1]: (None, None)}
        assert (await api.get("/api/v1/requests/about-an-asset"))["status"] == "completed"
        await api.get("/api/v1/requests/plain", 404)
        again = await submit(api, 200, request_id="about-an-asset")
        assert again["job_id"] == version["job_id"]
        refused = await decide(api, "/versions/0/reprocess", status=409)
        assert "give workflow_id and input_params" in refused["detail"]
        body = {"workflow_id": "ingest", "input_params": {"source": "bronze/b.zip"}}
        second = await decide(api, "/versions/0/reprocess", body, 201)
        job = await api.get(f"/api/v1/jobs/{second['job_id']}")
        assert job["input_params"] == {"source": "bronze/b.zip", "asset_id": ASSET_ID, "version_ordinal": 0}


async def test_a_secret_is_reused_when_a_version_is_processed_again(dsn: str) -> None:
    seen = []

    async def fetch(ctx: Any) -> dict[str, Any]:
        seen.append(ctx.params["token"])
        return {"blob_path": "silver/a.tif"}

    work = task("fetch", "END", params={"token": "{{ inputs.token }}"})
    secretive = graph({"work": work}, "ingest", start="work", inputs={"token": "string"})
    inputs = {"token": InputSpec(type=InputType.STRING, secret=True)}
    workflow = secretive.workflow.model_copy(update={"inputs": inputs})
    async with web(dsn, compile_graph(workflow), runs=True, functions={"fetch": fetch}) as api:
        await submit_and_process(api, input_params={"token": CLEAR})
        again = await decide(api, "/versions/0/reprocess", status=201)
        await api.fleet.ended(int(again["job_id"]))
        assert seen == [CLEAR, CLEAR]
        for table in ("dag_jobs", "dag_api_requests", "asset_events", "dag_job_events"):
            assert not await rows(dsn, f"SELECT FROM dagapp.{table} AS t WHERE t::text LIKE %s", f"%{CLEAR}%"), table


# Request input.


async def test_references_are_any_strings_and_numbers_of_a_bounded_length(dsn: str) -> None:
    async with site(dsn, runs=False) as api:
        for value, stored in (("ü" * 256, "ü" * 256), ("'; DROP --", "'; DROP --"), (7, "7"), (1.5, "1.5")):
            refs = {**REFS, "dataset_id": value}
            submitted = await submit(api, platform_refs=refs)
            assert submitted["asset_id"] == asset_id_of("ddh", {**REFS, "dataset_id": stored})
        for refused in ("x" * 257, True, {"a": 1}, "a\0b", "", None):
            await submit(api, 422, platform_refs={**REFS, "dataset_id": refused})
        await submit(api, 422, version_label="")
        await submit(api, 422, version_label="v\0")
        for request_id in ("", "a/b", "..", "a b", "r" * 129):
            await submit(api, 422, request_id=request_id)
        label = "  v1.0-β/../%00  "
        assert (await submit(api, version_label=label))["version_ordinal"] == 0
        assert (await version_of(api))["version_label"] == label
        await decide(api, "/reject", {"reason": "a\0b"}, 422)
        await decide(api, "/versions/99999999999/approve", {}, 422)
        await submit(api, platform_refs={**REFS, "dataset_id": "k"}, idempotency_key="k" * 128)
        await submit(api, 422, platform_refs={**REFS, "dataset_id": "l"}, idempotency_key="k" * 129)


async def test_a_request_id_reveals_nothing_to_another_submitter(dsn: str) -> None:
    async with site(dsn, ingest(), single(workflow_id="plain"), runs=False) as api:
        admin = await api.key("me")
        ddh = await api.key("ddh", Role.PARTNER, platform_id="ddh")
        arcgis = await api.key("arcgis", Role.PARTNER, platform_id="arcgis")
        first = await submit(api, headers=ddh, request_id="r-1", idempotency_key="k-1")
        body = {**BODY, "platform_id": "arcgis", "platform_refs": {"item_id": "1"}, "request_id": "r-1"}
        refused = await api.post("/api/v1/submit", body, 409, headers=arcgis)
        plain = await api.post("/api/v1/submit", {"workflow_id": "plain", "request_id": "r-1"}, 409, headers=arcgis)
        for answer in (refused, plain):
            assert not [value for value in (first["job_id"], ASSET_ID, "ddh", "k-1") if value in str(answer)]
        # Keys are separate for each partner.
        other = {**body, "request_id": "r-2", "idempotency_key": "k-1"}
        assert (await api.post("/api/v1/submit", other, 201, headers=arcgis))["is_new"]
        # Keys of an operator are separate for each platform.
        same = {"workflow_id": "plain", "request_id": "r-3"}
        await api.post("/api/v1/submit", same, 201, headers={**admin, "X-Dagmaster-Platform": "ddh"})
        await api.post("/api/v1/submit", same, 409, headers={**admin, "X-Dagmaster-Platform": "arcgis"})


async def test_a_partner_can_resubmit_only_workflows_of_its_platform(dsn: str) -> None:
    async with site(dsn, ingest(), ingest("internal"), runs=False) as api:
        await api.key("me")
        ddh = await api.key("ddh", Role.PARTNER, platform_id="ddh")
        await rows(dsn, "UPDATE dagapp.platforms SET allowed_workflows = '{ingest}' WHERE platform_id = 'ddh'")
        submitted = await submit(api, headers=ddh)
        async with opened(dsn, application="test") as conn:
            for status in ("running", "failed"):
                await move_job(conn, int(submitted["job_id"]), status)
        path = f"/api/v1/assets/{ASSET_ID}/versions/0/resubmit"
        again = f"/api/v1/assets/{ASSET_ID}/versions/0/reprocess"
        reviewer = await api.key("ana", Role.REVIEWER, platform_id="ddh")
        await api.post(again, {"workflow_id": "internal"}, 403, headers=reviewer)
        refused = await api.post(path, {"workflow_id": "internal"}, 403, headers=ddh)
        assert "may not submit workflow 'internal'; allowed: 'ingest'" in refused["detail"]
        await rows(dsn, "UPDATE dagapp.platforms SET is_active = false WHERE platform_id = 'ddh'")
        assert "not active" in (await api.post(path, {}, 422, headers=ddh))["detail"]
        await rows(dsn, "UPDATE dagapp.platforms SET is_active = true, allowed_workflows = NULL")
        assert (await api.post(path, {}, 201, headers=ddh))["revision"] == 2


async def test_hidden_assets_look_like_missing_ones(dsn: str) -> None:
    async with site(dsn) as api:
        await submit_and_process(api)
        await api.key("me")

        async def answer(asset_id: str, query: str = "") -> tuple[int, Any]:
            response = await api.client.get(f"/assets/{asset_id}/service{query}")
            return response.status_code, {
                **response.json(),
                "detail": response.json()["detail"].replace(asset_id, "ID"),
            }["detail"]

        for query in ("", "?version=0", "?preview=true", "?preview=true&version=0"):
            assert await answer(ASSET_ID, query) == await answer("f" * 32, query)


async def test_a_version_without_a_blob_is_approved_and_not_exported(dsn: str) -> None:
    async def load(ctx: Any) -> dict[str, Any]:
        return {"table_name": "geo.t"}

    async with web(dsn, ingest(handler="load"), export(), runs=True, functions={"load": load}) as api:
        await submit_and_process(api)
        approved = await decide(api, "/approve", {"clearance_level": "public"})
        assert approved["version"]["approval_state"] == "approved"
        [warning] = approved["warnings"]
        assert warning.startswith("the version was not exported: ") and "blob_path" in warning
        assert "export_queued" not in await events(api)


async def test_every_asset_operation_has_an_alias_under_api_dag(dsn: str) -> None:
    async with site(dsn, runs=False) as api:
        submitted = await api.post("/api/dag/submit", BODY, 201)
        for path in (f"assets/{ASSET_ID}", "assets", f"assets/{ASSET_ID}/versions/0", "commands"):
            assert await api.get(f"/api/dag/{path}") == await api.get(f"/api/v1/{path}")
        job = await api.get(f"/api/dag/status/job/{submitted['job_id']}")
        assert job == await api.get(f"/api/v1/jobs/{submitted['job_id']}")
        await api.post(f"/api/dag/assets/{ASSET_ID}/reject", {"reason": "blurred"})
        assert (await version_of(api))["approval_reason"] == "blurred"
        assert not [path for path in (await api.get("/openapi.json"))["paths"] if path.startswith("/api/dag/assets")]


# Callbacks.


@pytest.mark.parametrize(
    ("gateway_url", "result_url"),
    [
        (None, "https://dag.example/api/v1/requests/order%3A7"),
        ("https://gate.example", "https://gate.example/api/platform/status/order%3A7"),
    ],
)
async def test_a_callback_contains_the_request_id_and_not_the_job_id(
    dsn: str, gateway_url: str | None, result_url: str
) -> None:
    async with site(dsn, runs=False) as api, receiving() as receiver:
        submitted = await submit(api, request_id="order:7")
        job_id = int(submitted["job_id"])
        await rows(dsn, "UPDATE dagapp.dag_jobs SET callback_url = %s WHERE job_id = %s", receiver.url(), job_id)
        async with opened(dsn, application="test") as conn:
            await move_job(conn, job_id, "cancelled")
        await make_calls(dsn, options(public_url="https://dag.example", gateway_url=gateway_url))
    [call] = receiver.calls
    assert orjson.loads(call.body) == {"id": "order:7", "status": "cancelled", "result_url": result_url}
