"""The pytest plugin, in projects of users."""

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ("-p", "dagmaster.testing.plugin", "-p", "no:cacheprovider", "-W", "error")
SIDE_BY_SIDE = ("-p", "xdist", "-n", "2")
ASYNCIO = ("-p", "pytest_asyncio.plugin", "-o", "asyncio_default_fixture_loop_scope=function")

GREET = """
workflow_id: greet
inputs: {name: string}
nodes:
  greet:
    handler: greeting
    params: {name: "{{ inputs.name }}"}
    retry: {max_attempts: 3, backoff: fixed, initial_delay_seconds: 7200, max_delay_seconds: 7200}
"""
NAP = """
workflow_id: nap
nodes:
  nap: {handler: sleep, params: {seconds: 30}, timeout_seconds: 60, retry: {max_attempts: 0}}
"""
HANDLERS = """
from dagmaster import Permanent, handler

@handler
def greeting(ctx):
    if not ctx.params["name"]:
        raise Permanent("nobody to greet")
    return {"text": f"Hello, {ctx.params['name']}!"}
"""
MORE_TESTS = """
import pytest

@pytest.mark.asyncio
async def test_a_task_that_takes_too_long(dagmaster_job, dagmaster_clock):
    async with dagmaster_job("nap.yaml").started() as job:
        await job.until("nap", "running")
        dagmaster_clock.advance(minutes=2)
        await job.ended()
    assert job.error == "node nap failed: timed out after 60 s"

def test_a_handler_without_a_name(dagmaster_job):
    dagmaster_job("greet.yaml", {"name": "Ada"}, handlers=[lambda ctx: None])

@pytest.mark.asyncio
async def test_that_waits_in_vain(dagmaster_job):
    async with dagmaster_job("greet.yaml", {"name": "Ada"}).replace("greeting", {}).fail("greet").started() as job:
        await job.until("greet", "ready")
        await job.ended(timeout=0.1)
"""
TESTS = """
import time
import pytest
from pathlib import Path
from dagmaster import task, workflow
from dagmaster.testing import call_handler

FOLDER = Path(__file__).parent

@task
def double(number: int) -> int:
    return 2 * number

@workflow
def quadruple(number: int) -> int:
    return double(double(number))

@pytest.fixture
def greet(dagmaster_job):
    return lambda name: dagmaster_job("greet.yaml", {"name": name}, handlers=[FOLDER / "my_handlers.py"])

def test_the_workflow_beside_this_file(greet):
    assert greet("Ada").run().result["greet"]["text"] == "Hello, Ada!"

def test_its_failure(greet):
    job = greet("").run()
    assert job.status == "failed" and "nobody to greet" in job.error

def test_two_hours_of_back_off_in_a_second(greet):
    began = time.monotonic()
    job = greet("Ada").fail("greet", attempt=1, error=ConnectionError("gone")).skip_time(hours=2).run()
    assert [one.status for one in job.attempts("greet")] == ["failed", "completed"]
    assert time.monotonic() - began < 60

def test_a_lost_worker(greet):
    assert [one.status for one in greet("Ada").lose("greet").run().attempts("greet")] == ["lost", "completed"]

def test_a_stand_in(greet):
    assert greet("Ada").replace("greeting", {"text": "-"}).run().result["greet"] == {"text": "-"}

def test_each_test_has_a_database_of_its_own(dagmaster_database, dagmaster_server):
    import psycopg
    with psycopg.connect(dagmaster_database) as conn:
        assert conn.execute("SELECT count(*) FROM dagapp.dag_jobs").fetchone() == (0,)

def test_time_is_the_tests_own(dagmaster_clock):
    dagmaster_clock.advance(hours=2)
    assert dagmaster_clock.skipped.total_seconds() == 7200

def test_python(dagmaster_job):
    assert dagmaster_job(quadruple, {"number": 3}).run().result == 12

def test_a_handler_alone():
    assert call_handler("echo", {"x": 1}).success
"""


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins of this project's tests take seconds to load."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with a workflow, handlers and tests, run from its parent folder."""
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", "postgresql://the/production/database")
    folder = pytester.mkdir("flows")
    for name, text in {
        "greet.yaml": GREET,
        "my_handlers.py": HANDLERS,
        "nap.yaml": NAP,
        "test_flows.py": TESTS,
        "test_more.py": MORE_TESTS,
    }.items():
        (folder / name).write_text(text)
    return pytester


def test_a_project_tests_its_workflows_side_by_side(project: pytest.Pytester) -> None:
    """Whatever database its settings name, tests have their own. Failures explain themselves."""
    result = project.runpytest_subprocess(*PLUGIN, *ASYNCIO, *SIDE_BY_SIDE)
    result.assert_outcomes(passed=10, failed=2)
    result.stdout.fnmatch_lines_random(
        ["*a handler needs a name*", "*has not ended: Job * waits for `greet`, which failed once*"]
    )


def test_the_plugin_is_found_by_pytest_and_loaded_once() -> None:
    declared = re.search(r'pytest11]\n"(.+)" = "(.+)"\n', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert declared is not None
    name, module = declared.groups()
    assert EntryPoint(name, module, "pytest11").load().__name__ == name
