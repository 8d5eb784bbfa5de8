import asyncio
import gc
import math
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from command_line import call
from fleet import rows

import dagmaster
from dagmaster import JobFailed, current_task, run_job_test, task, workflow
from dagmaster.authoring.yaml import QueueRules, read_workflow
from dagmaster.errors import DatabaseUnavailable, Invalid, UnknownHandler
from dagmaster.handlers import registry
from dagmaster.model.states import JobStatus
from dagmaster.python.local import LocalFleet
from dagmaster.python.submission import submit_async


@pytest.fixture(autouse=True)
def installation(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", dsn)
    monkeypatch.setenv("DAGMASTER_POLL_INTERVAL_SECONDS", "0.1")
    monkeypatch.setenv("DAGMASTER_WORKER_QUEUE", "q")
    yield
    LocalFleet.close_shared()


@task
def extract(n: int) -> list[int]:
    return list(range(n))


@task
async def clean(row: int, factor: int) -> int:
    return row * factor


@task
def load(rows: list[int]) -> dict[str, int]:
    return {"rows": len(rows), "total": sum(rows)}


@workflow(id="etl_running")
def etl(n: int, factor: int = 10) -> dict[str, int]:
    return load(clean.map(extract(n), factor=factor))


ETL_IN_YAML = f"""
workflow_id: etl_in_yaml
inputs: {{n: integer, factor: {{type: integer, default: 10}}}}
nodes:
  extract:
    handler: "{__name__}:extract"
    params: {{n: "{{{{ inputs.n }}}}"}}
    next: clean
  clean:
    type: fan_out
    source: "{{{{ nodes.extract.output.result }}}}"
    task:
      handler: "{__name__}:clean"
      params: {{row: "{{{{ item }}}}", factor: "{{{{ inputs.factor }}}}"}}
    next: clean_all
  clean_all: {{type: fan_in, next: load}}
  load:
    handler: "{__name__}:load"
    params: {{rows: "{{{{ nodes.clean_all.output.results | map(attribute='result') | list }}}}"}}
"""
UNEQUAL = {"worker_id", "owner_id", "duration_seconds", "duration_ms", "workflow_id", "workflow_hash"}


def test_a_workflow_runs_in_one_line() -> None:
    assert etl.run(4) == {"rows": 4, "total": 60}
    assert etl.run(n=2, factor=3) == {"rows": 2, "total": 3}


async def test_the_timeline_equals_that_of_the_same_workflow_in_yaml(dsn: str) -> None:
    read, problems = read_workflow(ETL_IN_YAML, queues=QueueRules(registry.queues(), "q"))
    assert read is not None, problems
    here = LocalFleet.shared()
    in_yaml, in_python = [await here.run_async(workflow, {"n": 3, "factor": 10}) for workflow in (read, etl.workflow)]
    assert etl.result_of(in_python) == etl.result_of(in_yaml) == {"rows": 3, "total": 30}
    first, second = await timeline(dsn, in_yaml.job_id), await timeline(dsn, in_python.job_id)
    assert len(first) > 15
    assert second == first


async def timeline(dsn: str, job_id: int) -> list[str]:
    """The job's events without ids and times; concurrent steps may be in any order."""
    selected = await rows(dsn, "SELECT * FROM dagapp.dag_job_events WHERE job_id = %s", job_id)
    return sorted(orjson.dumps(_without_ids(row)).decode().replace(str(job_id), "JOB") for row in selected)


def _without_ids(event: dict[str, Any]) -> dict[str, Any]:
    data = {key: value for key, value in (event["event_data"] or {}).items() if key not in UNEQUAL}
    fields = {key: event[key] for key in ("event_type", "event_status", "node_id", "source_app", "error_message")}
    return {**fields, "data": dict(sorted(data.items()))}


async def test_run_works_beside_an_event_loop_and_in_a_thread() -> None:
    both = await asyncio.gather(etl.run_async(1), asyncio.to_thread(etl.run, 2), etl.run_async(3))
    assert [result["rows"] for result in both] == [1, 2, 3]


def test_tasks_defined_later_can_run() -> None:
    assert etl.run(1) == {"rows": 1, "total": 0}
    seen: list[int] = []

    @task
    def note(x: int) -> int:
        seen.append(x)
        return x

    @workflow
    def noted() -> int:
        return note(7)

    assert noted.run() == 7
    assert seen == [7], "in this very process"


def test_a_failed_job_raises_its_error() -> None:
    @task(retries=0)
    def break_down() -> None:
        raise ValueError("no such day")

    @workflow
    def broken() -> None:
        break_down()

    with pytest.raises(JobFailed, match=r"job \d+ failed: .*break_down.*ValueError: no such day") as failed:
        broken.run()
    assert failed.value.status is JobStatus.FAILED
    [note] = failed.value.__notes__
    assert 'raise ValueError("no such day")' in note, "where it was raised"
    assert run_job_test(broken).status is JobStatus.FAILED, "a test looks at it"


def test_an_unknown_handler_is_refused_without_waiting() -> None:
    @workflow
    def misspelt() -> Any:
        return dagmaster.call("ehco", x=1)

    with pytest.raises(Invalid, match=r"unknown handler 'ehco'; did you mean 'echo'\?"):
        misspelt.run()

    @task(retries=0)
    async def adds_misspelt() -> Any:
        return await dagmaster.apply(dagmaster.create_task("ehco"))

    @workflow
    def adding_misspelt() -> Any:
        return adds_misspelt()

    assert "no handler is named 'ehco'" in (run_job_test(adding_misspelt).error or "")


async def test_a_job_for_a_handler_without_workers_is_not_waited_for() -> None:
    @workflow
    def misspelt_elsewhere() -> Any:
        return dagmaster.call("ehco", x=1)

    job_id = await misspelt_elsewhere.submit_async()
    with pytest.raises(UnknownHandler, match=r"no handler is named 'ehco'; did you mean 'echo'"):
        await asyncio.to_thread(run_job_test, job_id, timeout=90)


def test_wrong_arguments_are_refused_before_the_job_is_created() -> None:
    @dataclass
    class Point:
        x: float
        y: float

    @task
    def norm(point: Point) -> float:
        return math.hypot(point.x, point.y)

    @workflow
    def norms(point: Point) -> float:
        return norm(point)

    wrong: Any = {"x": "three", "y": 4}
    assert norms.run(Point(3, 4)) == 5
    with pytest.raises(Invalid, match=r"invalid arguments of .*norms: point.x: Input should be a valid number"):
        norms.run(wrong)


def test_a_task_is_retried_as_declared() -> None:
    attempts: list[int] = []

    @task(retries=2, retry_delay=0)
    async def flaky() -> int:
        attempts.append(current_task().retry_count)
        if len(attempts) < 3:
            raise ConnectionError("not yet")
        return len(attempts)

    @workflow
    def patient() -> int:
        return flaky()

    assert patient.run() == 3
    assert attempts == [0, 1, 2]


def test_a_tolerated_failure_is_none_to_its_dependents() -> None:
    @task(retries=0, allow_failure=True)
    def reciprocal(x: int) -> float | None:
        return 1 / x

    @task
    def represented(value: Any) -> str:
        return repr(value)

    @workflow
    def inner() -> Any:
        return [reciprocal(0), reciprocal.map([1, 0]), represented(reciprocal(0))]

    @workflow
    def outer() -> Any:
        single, several, text = inner()
        return [represented(single), several, text]

    assert inner.run() == [None, [1.0, None], "None"]
    assert outer.run() == ["None", [1.0, None], "None"]


def test_a_task_that_raises_keyboard_interrupt_fails_and_the_fleet_survives() -> None:
    @task(retries=0)
    async def interrupted() -> None:
        raise KeyboardInterrupt

    @workflow
    def pressed() -> None:
        interrupted()

    with pytest.raises(JobFailed, match="KeyboardInterrupt"):
        pressed.run()
    assert etl.run(1) == {"rows": 1, "total": 0}


def test_a_local_fleet_whose_thread_ended_is_restarted() -> None:
    assert etl.run(1) == {"rows": 1, "total": 0}
    background = LocalFleet.shared()._background
    assert background is not None
    background.close()
    assert etl.run(1) == {"rows": 1, "total": 0}


def test_a_called_workflow_is_a_job_of_its_own() -> None:
    @workflow
    def inner(n: int) -> dict[str, Any]:
        inputs = extract.options(name="read_inputs")(n)
        return {"loaded": load(inputs), "inputs": inputs}

    @workflow
    def outer(n: int) -> int:
        results = inner(n)
        return clean(results["loaded"]["total"], factor=results["inputs"][2])

    assert outer.run(4) == 12


async def test_a_job_that_exceeds_its_timeout_is_cancelled(dsn: str) -> None:
    entered = threading.Event()

    @task
    async def sleep_long() -> None:
        entered.set()
        await asyncio.sleep(60)

    @workflow
    def endless() -> None:
        sleep_long()

    here = LocalFleet.shared()
    while not entered.is_set():  # On a busy machine the time may be over before the task starts.
        with pytest.raises(TimeoutError):
            await here.run_async(endless.workflow, {}, timeout=1)
    [*_, job] = await rows(dsn, "SELECT job_id FROM dagapp.dag_jobs ORDER BY created_at")
    assert (await asyncio.to_thread(here.finish, job["job_id"])).status is JobStatus.CANCELLED


async def test_a_submitted_job_can_be_run_by_a_test() -> None:
    job_id = await etl.submit_async(2)
    outcome = await asyncio.to_thread(run_job_test, job_id, timeout=90)
    assert etl.result_of(outcome) == {"rows": 2, "total": 10}
    again = await submit_async(etl.workflow, {"n": 5})
    assert etl.result_of(await asyncio.to_thread(LocalFleet.shared().finish, again, timeout=90))["rows"] == 5


# The command line.

FILE = """\
from dagmaster import task, workflow

@task
def double(x: int) -> int:
    return x * 2

@workflow
def twice(x: int = 4) -> int:
    return double(double(x))
"""


def test_the_command_line_runs_and_lists_workflows_of_python_files(tmp_path: Path) -> None:
    file = tmp_path / "doubling.py"
    file.write_text(FILE)
    done = call("run", f"{file}:twice", "-i", "x=3", "--json")
    assert done.json["result"]["double_2"] == {"result": 12}, done.err
    assert done.json["value"] == 12
    assert call("run", file).out.endswith("\n16\n")
    assert call("validate", file).out == f"{file}: ok\n"
    listed = call("workflows", "--handlers", file, "--json").json["workflows"]
    assert ("twice", "Python code") in [(row["workflow_id"], row["file"]) for row in listed]


DATED = """\
from datetime import date
from dagmaster import task, workflow

@task(allow_failure=True)
def year(day: date) -> int:
    return day.year

@workflow(id="dated-one")
def dated(day: date, until: date = None, others: list[date] | None = None) -> None:
    year(day)
"""


def test_the_command_line_validates_inputs_by_annotation(tmp_path: Path) -> None:
    file = tmp_path / "dating.py"
    file.write_text(DATED)
    refused = call("run", f"{file}:dated-one", "-i", "day=soon")
    assert refused.code == 2
    assert "input 'day' must be a date such as 2026-01-31" in refused.err
    done = call("run", f"{file}:dated", "-i", "day=2026-05-05", "--json")
    assert done.json["result"]["year"] == {"result": 2026} and "value" not in done.json


def test_a_workflow_is_submitted_by_id_and_run_by_its_module(tmp_path: Path) -> None:
    file = tmp_path / "doubled.py"
    file.write_text(FILE.replace("twice", "doubled"))
    done = call("submit", "doubled", "-i", "x=5", "--handlers", file)
    assert done.code == 0, done.err
    assert run_job_test(int(done.out), timeout=90).result["double_2"] == {"result": 20}


def test_yaml_can_name_functions_of_allowed_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain_functions.py").write_text("def half(x: int) -> float:\n    return x / 2\n")
    flow = tmp_path / "halving.yaml"
    flow.write_text("workflow_id: halving\nnodes:\n  half: {handler: plain_functions.half, params: {x: 3}}\n")
    refused = call("run", flow, "--json")
    assert refused.code == 2 and "plain_functions.half" in refused.err
    monkeypatch.setenv("DAGMASTER_TASK_MODULES", "plain_functions")
    done = call("run", flow, "--json")
    assert done.json["result"]["half"] == {"result": 1.5}, done.err


def test_a_file_that_runs_its_workflow_on_import_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "hasty.py"
    file.write_text(FILE.replace("twice", "hasty") + "\nprint(hasty.run())\n")
    done = call("run", file)
    assert done.code == 2
    assert "hasty.py runs a workflow when it is imported; guard the call with `if __name__ == '__main__':`" in done.err


def test_validate_finds_a_broken_workflow_function(tmp_path: Path) -> None:
    file = tmp_path / "broken_flow.py"
    file.write_text(FILE.replace("double(double(x))", "1 if double(x) else 2").replace("twice", "broken_twice"))
    done = call("validate", file)
    assert done.code == 2
    assert f"{file}:7: error: <nodes.double.output.result> has no value" in done.out


def test_without_a_database_only_that_error_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(DatabaseUnavailable, match="cannot be reached"):
            run_job_test(1)
        gc.collect()
    assert [str(warning.message) for warning in warned if "never awaited" in str(warning.message)] == []
