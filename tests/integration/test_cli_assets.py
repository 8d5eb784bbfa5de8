"""Assets, layers and platforms on the command line have the same results on the database and over HTTP."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from asset_rows import add_asset
from command_line import call, write_workflow
from fleet import rows
from serving import Server, server

IMPORT = """\
workflow_id: import
nodes:
  work: {handler: echo, queue: q}
"""


@pytest.fixture(scope="module")
def serving(shared_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("project") / "workflows"
    folder.mkdir()
    write_workflow(folder, IMPORT, "import.yaml")
    with server(shared_dsn, folder, works=False) as running, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parent)
        patch.setenv("DAGMASTER_WORKER_QUEUE", "q")
        yield running


@pytest.fixture(params=["database", "http"])
def where(request: pytest.FixtureRequest, serving: Server, shared_dsn: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The options that select database or server."""
    if request.param == "database":
        monkeypatch.setenv("DAGMASTER_DATABASE_URL", shared_dsn)
    else:
        monkeypatch.setenv("DAGMASTER_URL", serving.url)
    kind: str = request.param
    return kind


@pytest.fixture
def roads(shared_dsn: str, where: str) -> str:
    """A vector asset whose version 0 waits for review."""
    return add(shared_dsn, f"roads_{where}", latest=None, clearance="uncleared")


@pytest.fixture(autouse=True)
def clean(shared_dsn: str) -> Iterator[None]:
    yield
    for table in ("asset_events", "asset_versions", "layer_metadata", "layer_catalog", "stac_collections"):
        query(shared_dsn, f"DELETE FROM dagapp.{table}")
    query(shared_dsn, "DELETE FROM dagapp.geospatial_assets")
    query(shared_dsn, "DELETE FROM dagapp.platforms WHERE platform_id = 'ckan'")


def query(dsn: str, text: str) -> list[dict[str, Any]]:
    return asyncio.run(rows(dsn, text))


def add(dsn: str, asset_id: str, **options: Any) -> str:
    return asyncio.run(add_asset(dsn, asset_id, **options))


def describe(dsn: str, asset_id: str) -> None:
    query(
        dsn,
        f"""INSERT INTO dagapp.layer_metadata (asset_id, data_type, display_name)
            VALUES ('{asset_id}', 'vector', 'Roads')""",
    )


def test_the_output_is_the_same_over_http_and_from_the_database(serving: Server, shared_dsn: str) -> None:
    add(shared_dsn, "first", version_label="2024")
    add(shared_dsn, "second", platform_id="arcgis", latest=None)
    describe(shared_dsn, "first")
    for question in (
        ["assets"],
        ["assets", "list", "--json", "--platform", "arcgis"],
        ["assets", "show", "first"],
        ["assets", "show", "first", "--json"],
        ["assets", "history", "first"],
        ["platforms"],
        ["platforms", "list", "--json"],
        ["layers"],
    ):
        over_http, direct = call("--url", serving.url, *question), call("--database-url", shared_dsn, *question)
        assert (over_http.code, over_http.err) == (0, direct.err), question
        is_json = "--json" in question
        assert (over_http.json if is_json else over_http.out) == (direct.json if is_json else direct.out), question
    listed = call("--url", serving.url, "assets", "list", "--approval", "pending_review").out
    assert "second" in listed and "first" not in listed


def test_a_version_can_be_approved_and_the_asset_cleared_and_deleted(where: str, roads: str, shared_dsn: str) -> None:
    refused = call("assets", "approve", roads)
    assert (refused.code, "clearance_level" in refused.err) == (2, True)
    assert call("assets", "approve", roads, "--clearance", "ouo").out == f"Approved version 0 of asset {roads}\n"
    asset = call("assets", "show", roads, "--json").json
    assert (asset["clearance_state"], asset["versions"][0]["approval_state"]) == ("ouo", "approved")
    made_public = call("assets", "clear", roads, "public", "--reason", "released")
    assert made_public.out == f"Cleared asset {roads}: public\n"
    assert "warning: the version was not exported: no workflow is named" in made_public.err
    describe(shared_dsn, roads)
    query(shared_dsn, "UPDATE dagapp.layer_metadata SET is_external = true")
    deleted = call("assets", "delete", roads, "--version", 0)
    assert deleted.out == f"Deleted version 0 of asset {roads}\n"
    assert "warning: the published layer is not up to date: external_catalog" in deleted.err
    assert call("assets", "delete", roads).out == f"Deleted asset {roads}\n"
    assert call("assets", "list").err == "no assets\n"
    assert roads in call("assets", "list", "--deleted").out


def test_a_version_can_be_rejected_and_resubmitted(where: str, roads: str) -> None:
    rejected = call("assets", "reject", roads, "--reason", "wrong projection", "--json").json
    assert (rejected["asset_id"], rejected["ordinal"]) == (roads, 0)
    resubmitted = call("assets", "reprocess", roads, 0, "--workflow", "import", "--inputs", "{}", "--resubmit")
    assert (resubmitted.code, resubmitted.out.strip().isdecimal()) == (0, True), resubmitted.err
    version = call("assets", "show", roads, "--json").json["versions"][0]
    assert (version["revision"], version["current_job_id"]) == (2, resubmitted.out.strip())
    events = [event["event_type"] for event in call("assets", "history", roads, "--json").json]
    assert events == ["version_rejected", "version_resubmitted"]
    assert "wrong projection" in call("assets", "history", roads).out


def test_the_actor_of_a_decision_is_recorded(shared_dsn: str, serving: Server) -> None:
    add(shared_dsn, "roads", latest=None)
    at_database = ["--database-url", shared_dsn]
    assert call(*at_database, "assets", "approve", "roads", "--by", "ada").code == 0
    [event] = call(*at_database, "assets", "history", "roads", "--json").json
    assert event["actor"] == "ada"
    refused = call("--url", serving.url, "assets", "delete", "roads", "--by", "ada")
    assert (refused.code, "--by cannot be used with --url" in refused.err) == (2, True)


def test_an_unknown_asset_is_an_error(where: str) -> None:
    for args in (["show", "nothing"], ["history", "nothing"], ["approve", "nothing"]):
        done = call("assets", *args)
        assert (done.code, done.err) == (2, "error: there is no asset 'nothing'\n"), args
    assert "name an asset, or publish the layers of all with --all" in call("layers", "publish").err


def test_layers_can_be_published_and_unpublished(where: str, shared_dsn: str) -> None:
    asset_id = add(shared_dsn, f"layer_{where}")
    describe(shared_dsn, asset_id)
    done = call("layers", "publish", asset_id)
    assert done.out.splitlines() == [
        f"Published the layer of asset {asset_id}",
        f"  stac_collection: written ({asset_id})",
        f"  layer_catalog: written (geo.{asset_id})",
    ]
    assert call("layers", "publish", "--all").out.startswith("0 layers published, 1 unchanged")
    assert call("layers", "unpublish", asset_id, "--json").json["is_complete"]
    assert query(shared_dsn, "SELECT FROM dagapp.layer_catalog") == []
    audited = query(
        shared_dsn,
        "SELECT event_data ->> 'command' AS name FROM dagapp.dag_job_events WHERE event_type = 'command' "
        "ORDER BY event_id DESC LIMIT 3",
    )
    assert [row["name"] for row in audited] == ["metadata.unpublish", "metadata.publish", "metadata.publish"]


def test_a_failed_projection_exits_with_code_1(where: str, shared_dsn: str) -> None:
    for asset_id in ("one", "two"):
        add(shared_dsn, asset_id, table_name="geo.same")
        describe(shared_dsn, asset_id)
    assert call("layers", "publish", "one").code == 0
    failed = call("layers", "publish", "two")
    assert (failed.code, "Published" in failed.out) == (1, False)
    assert "error: layer_catalog: table 'geo.same' is in the catalogue for another asset" in failed.err
    everything = call("layers", "publish", "--all")
    assert (everything.code, "1 failed" in everything.out, "asset two" in everything.err) == (1, True, True)


def test_a_platform_can_be_added_only_once(where: str) -> None:
    args = ["platforms", "add", "ckan", "--name", "CKAN", "--ref", "package", "--workflow", "import"]
    assert call(*args).out == "Added platform ckan\n"
    assert call(*args).err.startswith("error: platform 'ckan' exists already")
    assert "CKAN" in call("platforms").out
    assert call("platforms", "add", "Two Words", "--name", "x", "--ref", "id").code == 2
