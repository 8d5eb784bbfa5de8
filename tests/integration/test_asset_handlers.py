"""Handlers decide on versions like the API, as the job's submitter, and withdraw them completely."""

import asyncio
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import shapely
from asset_rows import add_asset, add_item
from fleet import graph, rows, task
from geo_site import WORKFLOWS, shipped
from web import Web, web

from dagmaster import asset_handlers
from dagmaster.asset_handlers import stac_geoparquet, unpublish
from dagmaster.handlers import HandlerContext, HandlerResult, Retry, call, registry
from dagmaster.store.handler_pool import HandlerPool

# Imported for the handlers that they register.
assert asset_handlers.decisions and stac_geoparquet.MAX_ITEMS

SLOW = graph({"wait": task("sleep", "END", params={"seconds": 600})}, "slow", start="wait")
COMMENT = '{"dagmaster": {"job_id": 1, "asset_id": "roads", "version_ordinal": 0, "is_loaded": true}}'


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAGMASTER_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("DAGMASTER_WORKFLOWS_DIR", str(WORKFLOWS))
    monkeypatch.setenv("DAGMASTER_WORKER_QUEUE", "q")
    (tmp_path / "storage" / "silver").mkdir(parents=True)
    (tmp_path / "storage" / "silver" / "dem.tif").write_bytes(b"elevation")
    return tmp_path / "storage"


async def run(api: Web, name: str, **params: Any) -> dict[str, Any]:
    """Run the handler twice as a task of Ada's job; return its output, which the repetition must not change."""
    job_id = await api.fleet.submit(
        graph({"decide": task(name, "END", params=params)}, "decide", start="decide"), submitted_by="ada"
    )
    await api.fleet.completed(job_id)
    output: dict[str, Any] = (await api.fleet.nodes(job_id))["decide"]["output"]
    before = await history(api, params["asset_id"])
    repeated = await attempt(api, name, job_id, params)
    assert repeated.success, repeated.error_message
    assert await history(api, params["asset_id"]) == before
    return output


async def attempt(api: Web, name: str, job_id: int, params: dict[str, Any], *, has_pool: bool = True) -> HandlerResult:
    """Run it again, as after a worker that died after its decision."""
    pool = HandlerPool(api.dsn)
    ids: dict[str, Any] = {"task_id": f"{job_id}_decide_1", "job_id": job_id, "node_id": "decide", "handler": name}
    try:
        ctx = HandlerContext(**ids, params=params, pool=pool if has_pool else None)
        return await call(registry.get(name), ctx, executor=None)
    finally:
        await pool.close()


async def history(api: Web, asset_id: str) -> list[tuple[str, str | None, str | None]]:
    events = await rows(
        api.dsn,
        "SELECT event_type, actor, reason FROM dagapp.asset_events WHERE asset_id = %s ORDER BY event_id",
        asset_id,
    )
    decided = [(event["event_type"], event["actor"], event["reason"]) for event in events]
    return [event for event in decided if event[0] not in ("export_completed", "export_failed")]


async def version_of(api: Web, asset_id: str) -> dict[str, Any]:
    [version] = await rows(api.dsn, "SELECT * FROM dagapp.asset_versions WHERE asset_id = %s", asset_id)
    return version


async def test_decisions_by_handlers_match_the_api_and_are_idempotent(dsn: str, storage: Path) -> None:
    for asset_id, latest in (("dem", None), ("bad", None), ("old", 0)):
        await add_asset(
            dsn,
            asset_id,
            latest=latest,
            data_type="raster",
            clearance="ouo" if latest == 0 else "uncleared",
            blob_path="silver/dem.tif",
        )
    async with web(dsn, shipped("adf_export"), runs=True) as api:
        await check_approval(api, storage)
        await check_rejection(api)
        await check_promotion(api, storage)


async def check_approval(api: Web, storage: Path) -> None:
    asked = await run(api, "trigger_approval", asset_id="dem", version_ordinal=0, reason="please")
    assert (asked["approval_state"], asked["is_changed"]) == ("pending_review", True)
    approved = await run(
        api, "approve_dataset", asset_id="dem", version_ordinal=0, clearance_level="public", reason="good"
    )
    assert (approved["approval_state"], approved["clearance_state"]) == ("approved", "public")
    assert (approved["actor"], approved["warnings"]) == ("ada", [])
    assert await history(api, "dem") == [
        ("review_requested", "ada", "please"),
        ("asset_cleared", "ada", "good"),
        ("asset_made_public", "ada", "good"),
        ("version_approved", "ada", "good"),
        ("export_queued", "ada", None),
    ]
    await api.fleet.completed(int(approved["export_job_id"]))
    assert (storage / "external" / "dem" / "0" / "dem.tif").read_bytes() == b"elevation"


async def check_rejection(api: Web) -> None:
    rejected = await run(api, "reject_dataset", asset_id="bad", version_ordinal=0, reason="blurred")
    assert rejected["approval_state"] == "rejected"
    assert await history(api, "bad") == [("version_rejected", "ada", "blurred")]
    [job] = await rows(api.dsn, "SELECT max(job_id) AS job_id FROM dagapp.dag_jobs")
    refused = {
        ("approve_dataset", "bad"): "version 0 is rejected",
        ("promote_to_external", "bad"): "approve it first",
        ("trigger_approval", "bad"): "version 0 is rejected",
        ("approve_dataset", "unknown"): "there is no asset 'unknown'",
        ("unpublish_vector", "bad"): "use unpublish_raster",
    }
    for (name, asset_id), problem in refused.items():
        result = await attempt(api, name, job["job_id"], {"asset_id": asset_id, "version_ordinal": 0})
        assert result.permanent, name
        assert problem in (result.error_message or "")
    remote = await attempt(
        api, "reject_dataset", job["job_id"], {"asset_id": "bad", "version_ordinal": 0, "reason": "x"}, has_pool=False
    )
    assert "no connection to the database" in (remote.error_message or "")


async def check_promotion(api: Web, storage: Path) -> None:
    """Without workflow files on this machine, the last export is used."""
    promoted = await run(api, "promote_to_external", asset_id="old", version_ordinal=0)
    assert promoted["clearance_state"] == "public"
    await api.fleet.completed(int(promoted["export_job_id"]))
    assert [event for event, _, _ in await history(api, "old")] == ["asset_made_public", "export_queued"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DAGMASTER_WORKFLOWS_DIR", str(storage / "nothing"))
        await rows(api.dsn, "UPDATE dagapp.asset_versions SET export_error = 'full' WHERE asset_id = 'old'")
        again = await run(api, "promote_to_external", asset_id="old", version_ordinal=0)
    assert again["export_job_id"] != promoted["export_job_id"]


async def add_public(api: Web, storage: Path, asset_id: str, **version: Any) -> Path:
    """An asset with a public copy and an entry in the catalogue."""
    await add_asset(
        api.dsn, asset_id, clearance="public", external_blob_path=f"external/{asset_id}/0/index.geojson", **version
    )
    folder = storage / "external" / asset_id / "0"
    (folder / "tiles").mkdir(parents=True)
    for name in ("index.geojson", "tiles/a.tif", "tiles/b.tif"):
        (folder / name).write_text("public")
    await rows(
        api.dsn,
        "INSERT INTO dagapp.stac_items (collection_id, item_id, asset_id, version_ordinal, during, content) "
        "VALUES ('c', %s, %s, 0, '[2026-01-01,2026-01-02)', '{}')",
        *(f"{asset_id}-0", asset_id),
    )
    return folder


async def test_withdrawing_a_version_removes_all_its_public_copies(dsn: str, storage: Path) -> None:
    async with web(dsn, shipped("unpublish"), runs=True) as api:
        kept = await add_public(api, storage, "other", data_type="raster")
        folder = await add_public(api, storage, "dem", data_type="raster")
        exporting = await api.fleet.submit(SLOW, asset_id="dem", version_ordinal=0)
        await rows(api.dsn, "UPDATE dagapp.asset_versions SET export_job_id = %s WHERE asset_id = 'dem'", exporting)
        await api.fleet.until("SELECT count(*) = 1 AS ok FROM dagapp.dag_tasks_running")
        job_id = await api.fleet.submit(
            shipped("unpublish"),
            {"asset_id": "dem", "version_ordinal": 0, "data_type": "raster", "reason": "wrong"},
            submitted_by="ada",
        )
        await api.fleet.completed(job_id)
        report = (await api.fleet.nodes(job_id))["unpublish_raster"]["output"]
        names = ["index.geojson", "tiles/a.tif", "tiles/b.tif"]
        assert report["removed_files"] == [f"external/dem/0/{name}" for name in names], "the index goes first"
        assert report["removed_items"] == ["dem-0"]
        [stopped] = await api.fleet.ended(exporting)
        assert stopped["status"] == "cancelled"
        assert [path for path in folder.rglob("*") if path.is_file()] == []
        assert len(list(kept.rglob("*.*"))) == 3
        version = await version_of(api, "dem")
        assert version["deleted_by"] == "ada"
        assert (version["external_blob_path"], version["exported_at"]) == (None, None)
        assert await history(api, "dem") == [("version_deleted", "ada", "wrong"), ("export_removed", "ada", "wrong")]
        again = await attempt(api, "unpublish_raster", job_id, {"asset_id": "dem", "version_ordinal": 0})
        assert again.output is not None
        assert (again.output["removed_files"], again.output["removed_items"]) == ([], [])
        await check_vector(api, storage)


async def check_vector(api: Web, storage: Path) -> None:
    """Only tables that a job created for this version are dropped, whatever the version says."""
    await add_public(api, storage, "roads", table_name="geo.private")
    for name in ("roads", "private"):
        await rows(api.dsn, f"CREATE SCHEMA IF NOT EXISTS geo; CREATE TABLE geo.{name} ()")
    await rows(api.dsn, f"COMMENT ON TABLE geo.roads IS '{COMMENT}'")
    await rows(api.dsn, "COMMENT ON TABLE geo.private IS 'not JSON'")
    job_id = await api.fleet.submit(
        shipped("unpublish"), {"asset_id": "roads", "version_ordinal": 0, "data_type": "vector", "reason": None}
    )
    await api.fleet.completed(job_id)
    report = (await api.fleet.nodes(job_id))["unpublish_vector"]["output"]
    assert (report["dropped_tables"], report["actor"]) == (["geo.roads"], f"job {job_id}")
    [left] = await rows(api.dsn, "SELECT array_agg(tablename::text) AS names FROM pg_tables WHERE schemaname = 'geo'")
    assert left["names"] == ["private"]


async def test_the_catalogue_export_matches_what_readers_see(dsn: str, storage: Path) -> None:
    for asset_id, clearance in (("open", "public"), ("closed", "ouo"), ("secret", "uncleared")):
        await add_item(dsn, asset_id, clearance)
    async with web(dsn, runs=False) as api:
        job_id = await api.fleet.submit(SLOW)
        params: dict[str, Any] = {"base_url": "https://hub.example.com/"}
        exported = await attempt(api, "export_stac_geoparquet", job_id, params)
        assert exported.output is not None, exported.error_message
        assert (exported.output["items"], exported.output["path"]) == (1, "external/catalogue.parquet")
        inside = await attempt(api, "export_stac_geoparquet", job_id, {**params, "audience": "internal"})
        assert inside.output is not None
        table = pq.read_table(storage / "external" / "catalogue.parquet")
        assert sorted(table.column("id").to_pylist()) == ["closed-0", "open-0"]
        assert shapely.from_wkb(table.column("geometry")[0].as_py()).equals(shapely.Point(8.5, 47.4))
        [asset, _] = table.column("assets").to_pylist()
        assert asset["data"]["href"].startswith("https://hub.example.com/assets/")
        assert list((storage / "mount" / str(job_id)).iterdir()) == []
        no_pgstac = await attempt(api, "sync_pgstac", job_id, params)
        assert no_pgstac.permanent
        assert "does not have pgSTAC" in (no_pgstac.error_message or "")


async def test_a_version_whose_copies_cannot_be_removed_stays_in_the_catalogue(
    dsn: str, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version is withdrawn only when nothing of it is public."""
    async with web(dsn, runs=False) as api:
        folder = await add_public(api, storage, "dem", data_type="raster")
        job_id = await api.fleet.submit(SLOW)

        def refuse(path: Path) -> None:
            raise PermissionError(f"{path.name} is locked")

        params = {"asset_id": "dem", "version_ordinal": 0}
        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", refuse)
            failed = await attempt(api, "unpublish_raster", job_id, params)
        assert not failed.success
        assert "is locked" in (failed.error_message or "")
        assert (await version_of(api, "dem"))["deleted_at"] is None
        await asyncio.to_thread((folder / "tiles" / "late.tif").write_text, "x")
        assert (await attempt(api, "unpublish_raster", job_id, params)).success
        assert (await version_of(api, "dem"))["deleted_at"] is not None
        assert not list(folder.rglob("*.*"))


async def test_a_repeated_attempt_drops_copies_that_the_first_one_removed(
    dsn: str, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with web(dsn, runs=False) as api:
        await add_public(api, storage, "dem", data_type="raster")
        job_id = await api.fleet.submit(SLOW)
        params = {"asset_id": "dem", "version_ordinal": 0}

        async def fail(*_: Any, **__: Any) -> None:
            raise Retry("the external database is away")

        with monkeypatch.context() as patched:
            patched.setattr(unpublish, "_refresh_layer", fail)
            assert not (await attempt(api, "unpublish_raster", job_id, params)).success
        assert (await version_of(api, "dem"))["external_blob_path"] is not None
        assert (await attempt(api, "unpublish_raster", job_id, params)).success
        version = await version_of(api, "dem")
        assert (version["external_blob_path"], version["exported_at"]) == (None, None)
