import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import WORKFLOWS, Called, call, write_workflow

from dagmaster.python import catalogue

SLOW = """\
workflow_id: slow
nodes:
  nap: {handler: sleep, params: {seconds: 30}}
"""
FAILING = """\
workflow_id: failing
nodes:
  good: {handler: echo, next: bad}
  bad: {handler: fail, params: {message: it broke, permanent: true}}
"""
NEEDY = """\
workflow_id: needy
inputs: {count: integer, names: array}
nodes:
  a: {handler: echo, params: {count: "{{ inputs.count }}", names: "{{ inputs.names }}"}}
"""


@pytest.fixture(autouse=True)
def installation(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", dsn)
    monkeypatch.setenv("DAGMASTER_WORKFLOWS_DIR", str(WORKFLOWS))
    yield


def result_of(*args: object) -> dict[str, Any]:
    done = call("run", *args, "--json")
    assert done.code == 0, done.err
    assert done.json["status"] == "completed"
    result: dict[str, Any] = done.json["result"]
    assert result.pop("_provenance")["job_id"] == done.json["job_id"]
    return result


# Shipped workflows


def test_hello_world_greets() -> None:
    assert result_of("hello_world") == {"greet": {"message": "Hello, world!"}}
    assert result_of(WORKFLOWS / "hello_world.yaml", "-i", "name=Ada") == {"greet": {"message": "Hello, Ada!"}}


def test_echo_test_echoes() -> None:
    assert result_of("echo_test", "-i", "message=3") == {"echo_handler": {"echoed_params": {"message": "3"}}}


def test_data_passing_passes_outputs_between_nodes() -> None:
    report = result_of("data_passing")["report"]["echoed_params"]
    assert report == {"sentence": "8 numbers make 31; the largest is 9.", "average": 3.88}


@pytest.mark.parametrize(("size", "branch"), [(20, "small"), (250, "medium"), (2000, "large")])
def test_conditional_routing_takes_one_branch(size: int, branch: str) -> None:
    result = result_of("conditional_routing", "-i", f"size_mb={size}")
    assert result["record"]["echoed_params"] == {"branch": branch}
    assert {name for name in result if name.startswith("process_")} == {f"process_{branch}"}


@pytest.mark.parametrize(("thorough", "status"), [("true", "completed"), ("false", "skipped")])
def test_optional_step_runs_when_requested(thorough: str, status: str) -> None:
    result = result_of("optional_step", "-i", f"thorough={thorough}")
    assert result["finish"]["echoed_params"] == {"work": "done", "check": status}


def test_fan_out_fan_in_sums_all_items() -> None:
    result = result_of("fan_out_fan_in")
    assert [part["result"] for part in result["collect"]["results"]] == [6, 30, 100]
    assert result["total"] == {"processed": 3, "result": 136}
    assert result_of("fan_out_fan_in", "-i", "chunks=[]")["total"]["result"] == 0


def test_retries_succeed_after_the_configured_failures() -> None:
    assert result_of("retries")["report"]["echoed_params"] == {"retries_needed": 2}


def test_retries_are_limited() -> None:
    done = call("run", "retries", "-i", "failures=9", "--json")
    assert done.code == 1
    assert (done.json["status"], done.json["result"]) == ("failed", None)
    assert done.json["error"] == "node unreliable failed: flaky_echo failed in attempt 4"


def test_the_demo_computes_pi() -> None:
    result = result_of("demo", "-i", "slices=40", "--concurrency", "40")
    assert result["report"]["echoed_params"] == {
        "pi": 3.141645,
        "slices": 40,
        "retried": 2,
        "way": "quick_and_rough",
    }


# Output


def test_without_a_terminal_each_change_is_a_line_and_the_result_comes_last() -> None:
    done = call("run", "optional_step")
    lines, _, result = done.out.partition("{\n")
    assert done.code == 0
    assert re.search(r"^should_check: completed \(\d+ ms\)$", lines, re.MULTILINE)
    assert "check: skipped\n" in lines
    assert "START" not in lines
    assert '"check": "skipped"' in result
    assert done.err == ""


def test_the_time_of_a_job_is_the_same_everywhere(tmp_path: Path) -> None:
    """The wait before the first step does not count."""
    long = write_workflow(
        tmp_path, "workflow_id: long\nnodes:\n  only: {handler: echo, params: {text: '%s'}}\n" % ("x" * 9000)
    )
    completed = re.search(r"^job (\d+) completed in (.+); complete result", call("run", long).out, re.MULTILINE)
    assert completed is not None
    job_id, time = completed.groups()
    assert re.search(rf"^time +{re.escape(time)}$", call("show", job_id).out, re.MULTILINE)


def test_in_a_pipe_long_outputs_are_truncated_and_json_is_complete(tmp_path: Path) -> None:
    long = write_workflow(
        tmp_path,
        "workflow_id: long\nnodes:\n  zebra: {handler: echo, params: {text: '%s'}, next: apple}\n"
        "  apple: {handler: hello_world}\n" % ("word " * 500),
    )
    lines = call("run", long).out.splitlines()
    assert max(map(len, lines)) < 200
    assert " completed in " in lines[-3]
    assert lines[-2].startswith("web UI: start `dagmaster ")
    assert lines[-1].startswith("  http://127.0.0.1:8080/ui/jobs/")
    assert [line.split()[0] for line in lines if " = " in line] == ["zebra", "apple"]
    document = call("run", long, "--output", "json").json
    assert list(document["result"])[:2] == ["zebra", "apple"]
    assert len(document["result"]["zebra"]["echoed_params"]["text"]) == 2500


def test_a_failed_job_prints_its_error_and_the_command_to_inspect_it(tmp_path: Path) -> None:
    done = call("run", write_workflow(tmp_path, FAILING))
    assert done.code == 1
    assert "bad: failed: it broke" in done.out
    first, hint, _, page = done.err.splitlines()
    assert first.endswith("failed: node bad failed: it broke")
    assert hint == f"details: dagmaster timeline {first.split()[1]}"
    assert page == f"  http://127.0.0.1:8080/ui/jobs/{first.split()[1]}"


def test_run_times_out_and_leaves_the_job_running(tmp_path: Path) -> None:
    env = {"DAGMASTER_SHUTDOWN_GRACE_SECONDS": "0"}
    done = call("run", write_workflow(tmp_path, SLOW), "--timeout", "0.5", env=env)
    assert done.code == 124
    assert "timed out" in done.err
    [job] = call("jobs", "--json").json
    assert job["status"] in ("pending", "running")  # A busy machine may not have started it in time.


def test_the_default_queue_is_used_and_printed(tmp_path: Path) -> None:
    done = call("run", "hello_world", "--log-level", "info", "--json")
    assert "tasks without a queue use the queue 'default'" in done.err
    assert done.json["status"] == "completed"


def test_the_worker_consumes_the_queues_that_the_workflow_names(tmp_path: Path) -> None:
    flow = "workflow_id: w\nnodes:\n  a: {handler: echo, queue: special}\n  b: {handler: echo}\n"
    assert set(result_of(write_workflow(tmp_path, flow))) == {"a", "b"}


def test_handlers_are_loaded_from_a_file(tmp_path: Path) -> None:
    code = (
        "from dagmaster import handler\n\n@handler('cli.double')\ndef f(ctx):\n    return {'n': 2 * ctx.params['n']}\n"
    )
    (tmp_path / "cli_doubling.py").write_text(code)
    flow = write_workflow(tmp_path, "workflow_id: w\nnodes:\n  a: {handler: cli.double, params: {n: 21}}\n")
    assert result_of(flow, "--handlers", "cli_doubling.py") == {"a": {"n": 42}}


def test_inputs_can_be_read_from_stdin() -> None:
    done = call("run", "hello_world", "--inputs", "@-", "--json", input='{"name": "Bob"}')
    assert done.json["result"]["greet"] == {"message": "Hello, Bob!"}


def test_other_waiting_jobs_run_as_well(tmp_path: Path) -> None:
    flow = write_workflow(tmp_path, "workflow_id: w\nnodes:\n  a: {handler: echo, queue: default}\n")
    other = call("submit", flow, "--json").json["job_id"]
    result_of("demo", "-i", "slices=10")
    assert call("show", other, "--json").json["status"] == "completed"


# Usage errors: one clear message


def refused(*args: object) -> str:
    done: Called = call(*args)
    assert done.code == 2
    assert done.out == ""
    return done.err


def test_a_file_that_is_not_yaml_is_refused(tmp_path: Path) -> None:
    path = write_workflow(tmp_path, "workflow_id: x\nnodes:\n  a: {handler: echo\n  b: [\n")
    assert refused("run", path).startswith(f"{path}:4:4: error: not readable as YAML: ")


def test_a_cyclic_graph_is_refused(tmp_path: Path) -> None:
    flow = "workflow_id: w\nnodes:\n  a: {handler: echo, next: b}\n  b: {handler: echo, next: a}\n"
    path = write_workflow(tmp_path, flow)
    assert refused("run", path) == f"{path}:3:3: error: these nodes wait for each other: a -> b -> a\n"


def test_an_unknown_handler_is_refused(tmp_path: Path) -> None:
    path = write_workflow(tmp_path, "workflow_id: w\nnodes:\n  a: {handler: ehco}\n")
    assert "node 'a' names an unknown handler 'ehco'; did you mean 'echo'?" in refused("run", path)


def test_missing_inputs_are_all_named(tmp_path: Path) -> None:
    path = write_workflow(tmp_path, NEEDY)
    assert refused("run", path) == (
        "error: input 'count' is required (integer)\nerror: input 'names' is required (array)\n"
    )


def test_an_input_of_the_wrong_type_is_refused(tmp_path: Path) -> None:
    path = write_workflow(tmp_path, NEEDY)
    assert refused("run", path, "-i", "count=many") == (
        "error: input 'count' must be of type integer, not 'many'; example: -i count=3\n"
    )


def test_an_unknown_workflow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "defined", {})  # Modules of other tests define workflows too.
    message = refused("run", "helo_world")
    assert message.startswith("error: no workflow is named 'helo_world'")
    assert "did you mean 'hello_world'?" in message
    assert (
        "the workflows folder 'nowhere' does not exist"
        in call("run", "x", env={"DAGMASTER_WORKFLOWS_DIR": "nowhere"}).err
    )


def test_a_missing_workflow_file_is_an_error() -> None:
    assert refused("run", "nowhere.yaml") == (
        "nowhere.yaml: error: the file cannot be read: No such file or directory\n"
    )


def test_an_inactive_workflow_is_refused(tmp_path: Path) -> None:
    path = write_workflow(tmp_path, "workflow_id: w\nis_active: false\nnodes:\n  a: {handler: echo}\n")
    assert refused("run", path) == "error: workflow 'w' is not active (is_active: false)\n"


def test_a_missing_handlers_file_is_an_error() -> None:
    assert refused("run", "hello_world", "--handlers", "nowhere.py").startswith("error: there is no Python file")


def test_an_unreachable_database_is_an_error() -> None:
    message = refused("run", "hello_world", "--database-url", "postgresql://nobody@127.0.0.1:1/nothing")
    assert message.startswith("error: the database cannot be reached: ")
    assert "Connection refused" in message


def test_a_database_without_the_schema_is_an_error(dsn: str) -> None:
    assert call("migrate", "downgrade", "base").code == 0
    assert refused("run", "hello_world") == "error: the database has no dagmaster tables; run `dagmaster migrate`\n"


@pytest.mark.parametrize("folder", ["/dev/null/data", "/proc/data"])
def test_an_unwritable_data_folder_is_an_error(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGMASTER_DATABASE_URL")
    message = refused("run", "hello_world", "--data-dir", folder)
    assert message.startswith(f"error: the folder {folder} cannot be used: ")
    assert "DAGMASTER_DATA_DIR" in message
