import shutil
import subprocess
import sys

import pytest
from command_line import call


@pytest.fixture(autouse=True)
def installation(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", dsn)


def test_psql_finds_the_tables_without_their_schema() -> None:
    command = [sys.executable, "-m", "dagmaster", "psql", "-At", "-c", "SELECT count(*) FROM dag_jobs"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_without_psql_a_single_statement_can_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagmaster.store.embedded.find_program", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    result = call("psql", "-c", "SELECT 7 AS seven, count(*) AS jobs FROM dag_jobs")
    assert [line.split() for line in result.out.splitlines()] == [["seven", "jobs"], ["7", "0"]]
    assert 'relation "nothing" does not exist' in call("psql", "-c", "SELECT * FROM nothing").err
    assert "install it, or run one statement with -c" in call("psql").err
