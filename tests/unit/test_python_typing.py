"""What type checkers see in the code of users."""

import sys
from pathlib import Path
from subprocess import run

import pytest

SAMPLE = """
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
TYPES = [
    "list[int]",
    "dict[str, int]",
    "list[list[int]]",
    "list[int]",
    "dict[str, int]",
    "int",
    "int",
    "dict[str, int]",
]


@pytest.mark.slow
def test_results_have_the_types_of_the_functions(tmp_path: Path) -> None:
    file = tmp_path / "sample.py"
    file.write_text(SAMPLE)
    checker = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file="]
    done = run([*checker, "--cache-dir", str(tmp_path / "cache"), str(file)], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    revealed = [line.partition('is "')[2].rstrip('"').replace("builtins.", "") for line in lines if "Revealed" in line]
    assert revealed == TYPES, done.stdout + done.stderr
    errors = [line for line in lines if " error: " in line]
    assert len(errors) == 2, errors
    assert all('has incompatible type "str"; expected "int"' in line for line in errors)
