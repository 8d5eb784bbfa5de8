"""The pages of workflows."""

from pathlib import Path

import pytest
from fleet import chain, graph, single, task
from web import web

from dagmaster.authoring.catalog import Catalog
from dagmaster.model.access import Role
from dagmaster.model.workflow import EndNode, InputSpec, InputType, StartNode, TaskNode, Workflow
from dagmaster.web.ui.workflow import without_defaults

SCRIPT = "<script>alert(1)</script>"


async def test_workflows_known_only_from_jobs_are_listed(dsn: str) -> None:
    async with web(dsn, single(workflow_id="here"), runs=True) as api:
        await api.fleet.run(chain(2))
        listed = await api.get("/ui/workflows")
        page = await api.get("/ui/workflows/chain")
        drawn = await api.get("/ui/workflow-graphs/chain")
    assert 'id="workflow-here"' in listed
    assert 'id="workflow-chain"' in listed
    assert "not loaded" in listed
    assert "No file on this server defines this workflow" in page
    assert "/ui/submit?workflow=chain" not in page
    assert {node["node_id"] for node in drawn["nodes"]} == {"START", "n0", "n1", "END"}


async def test_workflows_are_found_by_name_and_description(dsn: str) -> None:
    async with web(
        dsn, graph({"a": task("echo", "END")}, "one", start="a", description="Makes Tiles"), single()
    ) as api:
        assert 'id="workflow-one"' in await api.get("/ui/workflows?text=tiles")
        assert 'id="workflow-single"' not in await api.get("/ui/workflows?text=tiles")
        assert "No matching workflows" in await api.get("/ui/workflows?text=nonsense")


async def test_a_broken_file_is_shown_with_its_error_and_advice(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("workflow_id: broken\nnodes: {START: {type: start, next: nowhere}}\n")
    async with web(dsn) as api:
        api.services.catalog = Catalog(tmp_path)
        page = await api.get("/ui/workflows")
    assert "broken.yaml" in page
    assert "nowhere" in page
    assert "dagmaster validate broken.yaml" in page
    assert str(tmp_path) not in page


async def test_the_advice_for_a_broken_file_names_its_path_in_the_working_folder(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("workflows").mkdir()
    Path("workflows/broken.yaml").write_text("nodes: [\n")
    async with web(dsn) as api:
        api.services.catalog = Catalog(Path("workflows"))
        assert "dagmaster validate workflows/broken.yaml" in await api.get("/ui/workflows")


async def test_a_workflow_page_shows_its_runs_and_nodes(dsn: str) -> None:
    async with web(dsn, single("fail"), runs=True) as api:
        job_id = (await api.fleet.run(single("fail")))["job_id"]
        page = await api.get("/ui/workflows/single")
    assert f'href="/ui/jobs/{job_id}/nodes/work"' in page
    assert 'class="cell is-failed"' in page
    assert "work: failed" in page
    assert "current" in page


def test_a_definition_is_shown_without_defaults_and_parses_to_the_same() -> None:
    nodes = {
        "START": StartNode(next=("a",)),
        "a": TaskNode(handler="echo", params={"text": "", "tags": []}, next=("END",)),
        "END": EndNode(),
    }
    inputs = {"name": InputSpec(), "size": InputSpec(type=InputType.INTEGER, required=False, default=0)}
    workflow = Workflow(workflow_id="w", name="W", inputs=inputs, nodes=nodes)
    document = without_defaults(workflow)
    assert document == {
        "workflow_id": "w",
        "name": "W",
        "inputs": {"name": {"type": "string"}, "size": {"type": "integer", "required": False, "default": 0}},
        "nodes": {
            "START": {"type": "start", "next": ["a"]},
            "a": {"type": "task", "handler": "echo", "params": {"text": "", "tags": []}, "next": ["END"]},
            "END": {"type": "end"},
        },
    }
    assert Workflow.model_validate(document) == workflow


async def test_author_text_is_escaped_and_secrets_are_redacted(dsn: str) -> None:
    secretive = task("echo", "END", params={"password": "hunter2", "text": SCRIPT})
    async with web(dsn, graph({"a": secretive}, "w", start="a", description=SCRIPT)) as api:
        page = await api.get("/ui/workflows/w")
        listed = await api.get("/ui/workflows")
    assert SCRIPT not in page + listed
    assert "hunter2" not in page


async def test_an_inactive_workflow_has_a_page_without_a_submit_button(dsn: str) -> None:
    async with web(dsn, graph({"a": task("echo", "END")}, "idle", start="a", is_active=False)) as api:
        page = await api.get("/ui/workflows/idle")
    assert "inactive" in page
    assert "/ui/submit?workflow=idle" not in page


@pytest.mark.parametrize("path", ["nothing", "a/b", "%3Cscript%3E", "x" * 300])
async def test_an_unknown_workflow_is_a_page_with_404(dsn: str, path: str) -> None:
    async with web(dsn) as api:
        page = await api.get(f"/ui/workflows/{path}", 404)
    assert "Not found" in page
    assert "<script>'" not in page


async def test_workflow_pages_require_read_access(dsn: str) -> None:
    async with web(dsn, single()) as api:
        partner = await api.key("p", Role.PARTNER)
        for path in ("/ui/", "/ui/workflows", "/ui/workflows/single", "/ui/workflow-graphs/single"):
            await api.get(path, 403, headers=partner)
