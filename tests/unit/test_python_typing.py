"""The types of user code as type checkers see them."""

import sys
from pathlib import Path
from subprocess import run

import pytest
from type_checker import CONFIGURATION

WORKFLOWS = """
from dagmaster import job, run_job_test, task, workflow


@task
def clean(row: int, factor: float = 1.0) -> list[int]:
    return [int(row * factor)]


@task(retries=3, queue="heavy", cache="1d", cache_version="2")
async def load(rows: list[int]) -> dict[str, int]:
    return {"n": len(rows)}


@workflow
def etl(row: int) -> dict[str, int]:
    reveal_type(clean(3))
    reveal_type(load([1]))
    reveal_type(clean.map([1, 2]))
    reveal_type(clean.options(retries=2)(1))
    clean("three")
    return load(clean(row))


@job(id="other", schedule="0 6 * * *")
def other(row: int) -> int:
    return clean(row)[0]


reveal_type(etl.run(3))
reveal_type(etl.submit(row=3))
reveal_type(other.run(row=1))
etl.run("three")
run_job_test(etl, 3).need_completed()


async def use() -> None:
    reveal_type(await etl.run_async(3))
"""
WORKFLOW_TYPES = [
    "list[int]",
    "dict[str, int]",
    "list[list[int]]",
    "list[int]",
    "dict[str, int]",
    "int",
    "int",
    "dict[str, int]",
]


CLIENT = """
from dagmaster.client import AsyncClient, Client

with Client("http://server", retries=1) as client:
    reveal_type(client.submit("greet", {"name": "Ada"}, priority=3).job_id)
    reveal_type(client.pause(1, reason="lunch"))
    reveal_type([event.event_type for event in client.stream(1)])
    reveal_type(client.close())
    client.pause()
    client.submit("greet", urgent=True)
"""
CLIENT_TYPES = ["str", "dagmaster.schemas.jobs.JobSteered", "list[str]", "None"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_results_have_the_types_of_the_functions(tmp_path: Path) -> None:
    """One run for both files, because it reads much of the package."""
    lines = _checked(tmp_path, workflows=WORKFLOWS, client=CLIENT)
    assert _revealed(lines["workflows"]) == WORKFLOW_TYPES
    assert _revealed(lines["client"]) == CLIENT_TYPES
    wrong_types, wrong_calls = _errors(lines["workflows"]), _errors(lines["client"])
    assert len(wrong_types) == 2, wrong_types
    assert all('has incompatible type "str"; expected "int"' in line for line in wrong_types)
    assert len(wrong_calls) == 2, wrong_calls
    assert "Too few arguments" in wrong_calls[0] or "Missing positional argument" in wrong_calls[0]
    assert 'Unexpected keyword argument "urgent"' in wrong_calls[1]


def _checked(folder: Path, **samples: str) -> dict[str, list[str]]:
    """The output of the checker for each."""
    for name, text in samples.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "mypy.ini").write_text(CONFIGURATION)
    options = ["--strict", "--config-file", str(folder / "mypy.ini"), "--cache-dir", str(folder / "cache")]
    files = [str(folder / f"{name}.py") for name in samples]
    done = run([sys.executable, "-m", "mypy", *options, *files], capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return {name: [line for line in done.stdout.splitlines() if f"{name}.py:" in line] for name in samples}


def _revealed(lines: list[str]) -> list[str]:
    return [line.partition('is "')[2].rstrip('"').replace("builtins.", "") for line in lines if "Revealed" in line]


def _errors(lines: list[str]) -> list[str]:
    return [line for line in lines if " error: " in line]
