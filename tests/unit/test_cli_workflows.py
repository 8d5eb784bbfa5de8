from pathlib import Path

import pytest
from command_line import WORKFLOWS, call, write_workflow

from dagmaster.authoring.catalog import Catalog
from dagmaster.cli.serve import workflows_of
from dagmaster.model.workflow import EndNode, StartNode, Workflow
from dagmaster.python import catalogue
from dagmaster.python.tasks import task
from dagmaster.python.workflows import workflow

GOOD = """\
workflow_id: good
nodes:
  a: {handler: echo}
"""
BROKEN = """\
workflow_id: broken
nodes:
  a: {handler: echo
  b: [
"""
CYCLE = """\
workflow_id: cycle
inputs:
  n: integer
nodes:
  a: {handler: echo, next: b, params: {m: "{{ inputs.m }}"}}
  b: {handler: echo, next: a}
"""


@task
def add_up() -> int:
    return 1


@workflow(id="orders_of_this_test")
def orders() -> int:
    return add_up()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "workflows").mkdir()
    monkeypatch.setattr(catalogue, "defined", {})  # Modules of other tests define workflows too.
    return tmp_path / "workflows"


def test_a_valid_file_is_ok(folder: Path) -> None:
    checked = call("validate", write_workflow(folder, GOOD))
    assert (checked.code, checked.out) == (0, f"{folder / 'flow.yaml'}: ok\n")


def test_all_problems_of_all_files_are_listed_with_their_places(folder: Path) -> None:
    write_workflow(folder, GOOD, "good.yaml")
    write_workflow(folder, BROKEN, "broken.yaml")
    write_workflow(folder, CYCLE, "cycle.yml")
    checked = call("validate", "workflows")
    assert checked.code == 2
    assert [line.partition(" error: ")[0] for line in checked.out.splitlines()] == [
        "workflows/broken.yaml:4:4:",
        "workflows/cycle.yml:5:3:",
        "workflows/cycle.yml:5:43:",
        "workflows/good.yaml: ok",
    ]
    assert "these nodes wait for each other: a -> b -> a" in checked.out
    assert "inputs.m refers to an unknown input" in checked.out


def test_a_workflow_without_an_inputs_section_causes_a_warning(folder: Path) -> None:
    write_workflow(folder, "workflow_id: w\nnodes: {a: {handler: echo, queue: q, params: {x: '{{ inputs.x }}'}}}")
    checked = call("validate", "workflows")
    assert checked.code == 0
    assert " warning: the workflow declares no inputs and uses x" in checked.out


def test_problems_are_available_as_json(folder: Path) -> None:
    write_workflow(folder, CYCLE)
    checked = call("validate", "workflows", "--json")
    assert checked.code == 2
    assert checked.json["ok"] is False
    [file] = checked.json["files"]
    assert file["problems"][0] == {
        "file": "workflows/flow.yaml",
        "line": 5,
        "column": 3,
        "severity": "error",
        "message": "these nodes wait for each other: a -> b -> a",
    }


def test_handlers_are_checked_if_known(folder: Path) -> None:
    path = write_workflow(folder, "workflow_id: w\nnodes:\n  a: {handler: shout}\n")
    assert call("validate", path).code == 0
    shouting = folder / "cli_shouting.py"
    shouting.write_text("from dagmaster import handler\n\n@handler('cli.shout')\ndef shout(ctx): ...\n")
    checked = call("validate", path, "--handlers", shouting)
    assert checked.code == 2
    assert "names an unknown handler 'shout'" in checked.out


@pytest.mark.parametrize(
    ("path", "message"),
    [("nowhere.yaml", "there is no file 'nowhere.yaml'"), (".", "no workflow files in '.'")],
)
def test_a_missing_file_is_a_usage_error(path: str, message: str) -> None:
    checked = call("validate", path)
    assert (checked.code, checked.err) == (2, f"error: {message}\n")


def test_a_queue_is_required_without_a_default(folder: Path) -> None:
    path = write_workflow(folder, GOOD)
    checked = call("validate", path, "--database-url", "postgresql://nobody@127.0.0.1:1/nothing")
    assert checked.code == 2
    assert "node 'a' has no queue" in checked.out


def test_the_folder_is_listed_with_the_problems_of_its_files(folder: Path) -> None:
    write_workflow(folder, GOOD, "good.yaml")
    write_workflow(folder, BROKEN, "broken.yaml")
    listed = call("workflows")
    assert listed.code == 0
    assert [line.split() for line in listed.out.splitlines()] == [
        ["WORKFLOW", "VERSION", "NODES", "INPUTS", "FILE"],
        ["good", "1", "3", "workflows/good.yaml"],
    ]
    assert listed.err.startswith("workflows/broken.yaml:4:4: error: not readable as YAML")


def test_the_folder_is_listed_as_json() -> None:
    listed = call("workflows", "--json", env={"DAGMASTER_WORKFLOWS_DIR": str(WORKFLOWS)})
    assert listed.json["problems"] == []
    by_id = {workflow["workflow_id"]: workflow for workflow in listed.json["workflows"]}
    assert by_id["hello_world"]["inputs"]["name"] == {
        "type": "string",
        "required": False,
        "default": "world",
        "description": "The name to greet.",
    }
    assert all(Path(workflow["file"]).stem == name for name, workflow in by_id.items())


def test_every_shipped_workflow_has_a_description() -> None:
    listed = call("workflows", "--json", env={"DAGMASTER_WORKFLOWS_DIR": str(WORKFLOWS)})
    assert len(listed.json["workflows"]) == len(list(WORKFLOWS.glob("*.yaml")))
    assert all(workflow["description"] for workflow in listed.json["workflows"])


TYPED = """
from pydantic import BaseModel
from dagmaster import handler

class Typed(BaseModel):
    count: int

@handler("typed.count", params=Typed)
def count(ctx, params):
    return {}
"""


def test_parameters_are_checked_against_the_given_handlers(folder: Path) -> None:
    (folder.parent / "typed_handlers.py").write_text(TYPED)
    flow = write_workflow(folder, "workflow_id: w\nnodes:\n  a: {handler: typed.count, queue: q, params: {count: x}}")
    checked = call("validate", flow, "--handlers", folder.parent / "typed_handlers.py")
    assert (checked.code, checked.out) == (
        2,
        f"{flow}:3:55: error: node 'a': handler 'typed.count' rejects the parameter 'count': it must be an integer, "
        "not a string ('x')\n",
    )


def test_validation_works_without_a_reachable_database(folder: Path) -> None:
    flow = write_workflow(folder, "workflow_id: w\nnodes: {a: {handler: echo, queue: q}}")
    nowhere = ("--database-url", f"postgresql://nobody@/none?host={folder}")
    checked = call(*nowhere, "validate", flow)
    assert (checked.code, checked.out) == (0, f"{flow}: ok\n")
    assert checked.err.startswith("handler contracts were not checked: the database cannot be reached: ")
    assert call(*nowhere, "validate", flow, "--no-contracts").err == ""
    result = call(*nowhere, "validate", flow, "--contracts")
    assert (result.code, result.out) == (2, "")


def test_contracts_are_not_mentioned_without_a_database(folder: Path) -> None:
    flow = write_workflow(folder, GOOD)
    assert call("validate", flow).err == ""
    result = call("validate", flow, "--contracts")
    assert result.code == 2
    assert "no database is configured" in result.err


def test_dev_says_where_workflows_come_from(folder: Path) -> None:
    catalog = Catalog(folder)
    assert workflows_of(catalog, folder) == f"none (in {folder})"
    nodes = {"START": StartNode(next=("END",)), "END": EndNode()}
    catalog.register(Workflow(workflow_id="orders", name="orders", nodes=nodes))
    assert workflows_of(catalog, folder) == "orders (in Python)"
    write_workflow(folder, GOOD)
    catalog.reload()
    assert workflows_of(catalog, folder) == f"good, orders (in {folder} and Python)"


@pytest.mark.parametrize("has_folder", [True, False])
def test_an_unknown_name_is_compared_with_workflows_in_python_too(
    folder: Path, has_folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_folder:
        write_workflow(folder, GOOD)
    else:
        folder.rmdir()

    monkeypatch.setattr(catalogue, "defined", {"orders_of_this_test": orders})
    unknown = call("run", "orders_of_this_tst")
    loaded = "good, orders_of_this_test" if has_folder else "orders_of_this_test"
    assert unknown.code == 2
    assert f"loaded are: {loaded}; did you mean 'orders_of_this_test'?" in unknown.err
