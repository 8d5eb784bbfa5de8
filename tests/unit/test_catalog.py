"""The catalog: a folder of workflow files, reloadable, and robust against broken ones."""

import os
from pathlib import Path

import pytest

from dagmaster.authoring.catalog import Catalog
from dagmaster.authoring.yaml import QueueRules
from dagmaster.errors import Misconfigured, UnknownWorkflow
from dagmaster.model.problems import InvalidWorkflow
from dagmaster.model.workflow import EndNode, StartNode, TaskNode, Workflow

QUEUES = QueueRules(default_queue="q")


def write(folder: Path, name: str, workflow_id: str, *, version: int = 1, handler: str = "h") -> Path:
    path = folder / name
    path.write_text(f"workflow_id: {workflow_id}\nversion: {version}\nnodes: {{a: {{handler: {handler}}}}}\n")
    return path


def in_python(workflow_id: str = "made", handler: str = "h", queue: str | None = None) -> Workflow:
    nodes = {
        "START": StartNode(next=("a",)),
        "a": TaskNode(handler=handler, queue=queue, next=("END",)),
        "END": EndNode(),
    }
    return Workflow(workflow_id=workflow_id, name=workflow_id, nodes=nodes)


def test_the_files_of_a_folder_are_loaded(tmp_path: Path) -> None:
    write(tmp_path, "one.yaml", "one")
    write(tmp_path, "two.yml", "two")
    write(tmp_path, "notes.txt", "not_a_workflow")
    write(tmp_path, ".hidden.yaml", "hidden")
    (tmp_path / "folder.yaml").mkdir()
    catalog = Catalog(tmp_path, queues=QUEUES)
    assert set(catalog.workflows) == {"one", "two"}
    assert not catalog.problems
    assert catalog.get("one").nodes["a"].type == "task"


def test_a_broken_file_does_not_stop_the_others_and_is_listed(tmp_path: Path) -> None:
    write(tmp_path, "good.yaml", "good")
    broken = tmp_path / "broken.yaml"
    broken.write_text("workflow_id: broken\nnodes: {a: {}}\n")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xff")
    catalog = Catalog(tmp_path, queues=QUEUES)
    assert set(catalog.workflows) == {"good"}
    assert [str(problem) for problem in catalog.problems[str(broken)]] == [
        f"{broken}:2:9: error: node 'a' needs a 'handler'"
    ]
    assert set(catalog.problems) == {str(broken), str(tmp_path / "binary.yaml")}


def test_an_unknown_workflow_error_lists_the_known_ones(tmp_path: Path) -> None:
    write(tmp_path, "raster.yaml", "raster_ingest")
    (tmp_path / "broken.yaml").write_text("nodes: 5")
    catalog = Catalog(tmp_path, queues=QUEUES)
    with pytest.raises(UnknownWorkflow) as caught:
        catalog.get("raster_ingst")
    assert str(caught.value) == (
        "no workflow is named 'raster_ingst'; loaded are: raster_ingest; "
        "not loaded because of problems: broken.yaml; did you mean 'raster_ingest'?"
    )


def test_an_empty_catalog_says_that_nothing_is_loaded() -> None:
    with pytest.raises(UnknownWorkflow, match="no workflow is named 'x'; loaded are: none"):
        Catalog().get("x")


def test_a_version_can_be_requested(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "a", version=2)
    catalog = Catalog(tmp_path, queues=QUEUES)
    assert catalog.get("a", 2).version == 2
    assert catalog.get("a", None).version == 2
    with pytest.raises(UnknownWorkflow, match="workflow 'a' is loaded in version 2, not 1"):
        catalog.get("a", 1)


def test_a_duplicate_id_is_a_problem_of_the_second_file(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "same", handler="first")
    second = write(tmp_path, "b.yaml", "same", handler="second")
    catalog = Catalog(tmp_path, queues=QUEUES)
    node = catalog.get("same").nodes["a"]
    assert isinstance(node, TaskNode)
    assert node.handler == "first"
    (problem,) = catalog.problems[str(second)]
    assert problem.message == f"the workflow_id 'same' is already used by {tmp_path / 'a.yaml'}; this file is ignored"


def test_reload_detects_new_changed_and_removed_files(tmp_path: Path) -> None:
    changed, removed = write(tmp_path, "a.yaml", "a"), write(tmp_path, "b.yaml", "b")
    catalog = Catalog(tmp_path, queues=QUEUES)
    before = catalog.get("a")
    write(tmp_path, "a.yaml", "a", version=2)
    touch_later(changed)
    removed.unlink()
    write(tmp_path, "c.yaml", "c")
    catalog.reload()
    assert set(catalog.workflows) == {"a", "c"}
    assert catalog.get("a").version == 2
    assert before.version == 1


def test_reload_reads_only_what_changed(tmp_path: Path) -> None:
    same, changed = write(tmp_path, "a.yaml", "a"), write(tmp_path, "b.yaml", "b")
    catalog = Catalog(tmp_path, queues=QUEUES)
    a, b = catalog.get("a"), catalog.get("b")
    touch_later(changed)
    catalog.reload()
    assert catalog.get("a") is a
    assert catalog.get("b") is not b
    assert same.exists()


def test_a_broken_file_is_removed_and_returns_when_fixed(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", "a")
    catalog = Catalog(tmp_path, queues=QUEUES)
    path.write_text("workflow_id: a\nnodes: {")
    catalog.reload()
    assert not catalog.workflows
    assert catalog.problems
    write(tmp_path, "a.yaml", "a")
    touch_later(path)
    catalog.reload()
    assert set(catalog.workflows) == {"a"}
    assert not catalog.problems


def test_a_file_with_warnings_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("workflow_id: a\nnodes: {c: {type: conditional, condition: true, on_true: END, queue: q}}")
    catalog = Catalog(tmp_path, queues=QUEUES)
    assert catalog.get("a")
    assert [problem.severity for problem in catalog.problems[str(path)]] == ["warning"]
    with pytest.raises(UnknownWorkflow) as caught:
        catalog.get("b")
    assert "problems" not in str(caught.value)


def test_a_workflow_can_be_registered_and_replaced(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path, queues=QUEUES)
    registered = catalog.register(in_python())
    assert catalog.get("made") is registered
    node = registered.nodes["a"]
    assert isinstance(node, TaskNode)
    assert node.queue == "q"
    catalog.register(in_python(queue="other"))
    catalog.reload()
    replaced = catalog.get("made").nodes["a"]
    assert isinstance(replaced, TaskNode)
    assert replaced.queue == "other"


def test_a_registered_workflow_takes_precedence_over_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", "made")
    catalog = Catalog(tmp_path, queues=QUEUES)
    registered = catalog.register(in_python())
    assert catalog.get("made") is registered
    assert "is already used by Python code" in catalog.problems[str(path)][0].message


def test_registering_validates_the_workflow() -> None:
    with pytest.raises(InvalidWorkflow, match="node 'a' has no queue"):
        Catalog().register(in_python())
    known = Catalog(queues=QueueRules({"echo": "q"}))
    with pytest.raises(InvalidWorkflow, match="unknown handler 'ecko'; did you mean 'echo'"):
        known.register(in_python(handler="ecko"))
    assert not known.workflows


def test_a_registered_workflows_hash_includes_its_queues() -> None:
    workflow = in_python()
    assert workflow.content_hash != Catalog(queues=QUEUES).register(workflow).content_hash


def test_the_mappings_are_read_only_and_replaced_by_reload(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "a")
    catalog = Catalog(tmp_path, queues=QUEUES)
    seen = catalog.workflows
    with pytest.raises(TypeError):
        seen["b"] = seen["a"]  # type: ignore[index]
    write(tmp_path, "b.yaml", "b")
    catalog.reload()
    assert set(seen) == {"a"}
    assert set(catalog.workflows) == {"a", "b"}


def test_a_missing_folder_is_an_invalid_setting(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"the workflows folder '.*absent' does not exist"):
        Catalog(tmp_path / "absent")


def touch_later(path: Path) -> None:
    """Files written within one tick of the clock would look unchanged."""
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000_000))
