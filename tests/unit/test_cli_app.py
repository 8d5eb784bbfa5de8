import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import call

import dagmaster
from dagmaster.cli.app import COMMANDS, load_command, shared_first
from dagmaster.cli.failures import fail
from dagmaster.errors import Misconfigured
from dagmaster.model.inputs import WrongInputs
from dagmaster.model.problems import InvalidWorkflow, Problem

ROLES = ("dagmaster.orchestrator", "dagmaster.worker", "dagmaster.web")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_root_help_repeats_the_first_line_of_each_command(name: str) -> None:
    command = load_command(name)
    assert command.help.splitlines()[0] == COMMANDS[name].help
    assert f"Examples:\n  dagmaster {name}" in command.help or f"\n  dagmaster {name}" in command.help


@pytest.mark.parametrize("name", COMMANDS)
def test_no_help_shows_formatter_markup(name: str) -> None:
    assert "\\b" not in load_command(name).help


@pytest.mark.parametrize("name", ["upgrade", "downgrade", "current", "history"])
def test_every_migrate_subcommand_has_help_with_an_example(name: str) -> None:
    result = call("migrate", name, "--help")
    assert result.code == 0
    assert f"dagmaster migrate {name}" in result.out


def test_help_imports_nothing_slow() -> None:
    script = """
import sys
from dagmaster.cli.app import app
try:
    app(["--help"], prog_name="dagmaster")
except SystemExit:
    pass
slow = {"sqlalchemy", "alembic", "psycopg", "jinja2", "yaml", "pydantic", "asyncio"} & set(sys.modules)
sys.exit(f"loaded: {slow}" if slow else 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Run a workflow in this process" in done.stdout


def test_the_version_is_printed_without_building_the_command_line() -> None:
    script = """
import sys
sys.argv = ["dagmaster", "version"]
from dagmaster.cli import main
main()
slow = {"typer", "rich", "pydantic", "asyncio"} & set(sys.modules)
sys.exit(f"loaded: {slow}" if slow else 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"dagmaster {dagmaster.__version__}\n"), done.stderr


def test_without_a_command_the_help_is_shown() -> None:
    result = call()
    assert result.code == 0
    assert "Usage: dagmaster" in result.out


def test_an_unknown_command_is_a_usage_error_with_a_suggestion() -> None:
    result = call("jbos")
    assert result.code == 2
    assert "Did you mean 'jobs'?" in result.err


def test_shared_options_may_be_anywhere() -> None:
    assert shared_first(["run", "x", "--data-dir", "d", "-i", "a=1", "--debug", "--log-level=info"]) == [
        *("--data-dir", "d", "--debug", "--log-level=info"),
        *("run", "x", "-i", "a=1"),
    ]
    assert shared_first(["run", "--", "--debug"]) == ["run", "--", "--debug"]
    assert shared_first(["run", "--data-dir"]) == ["--data-dir", "run"]


def test_the_version_is_the_packages() -> None:
    assert call("version").out == f"dagmaster {dagmaster.__version__}\n"
    assert call("version", "--json").json == {"version": dagmaster.__version__}


def test_an_invalid_setting_is_one_message() -> None:
    result = call("jobs", "--log-level", "loud")
    assert result.code == 2
    assert result.err == (
        "error: log_level (argument) should be 'debug', 'info', 'warning', 'error' or 'critical', not 'loud'\n"
    )


def test_a_project_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "shop").write_text("not a folder")
    result = call("init", "shop")
    assert (result.code, result.err) == (2, "error: cannot write shop/dagmaster.toml: File exists\n")


def test_the_folder_of_a_new_project_is_quoted_for_the_shell() -> None:
    assert "\n  cd 'my shop'\n" in call("init", "my shop").out


@pytest.mark.parametrize(("command", "usage"), [(["validate"], "{PATH}..."), (["workers", "stop"], "[WORKER]...")])
def test_a_repeatable_argument_is_marked_once(command: list[str], usage: str) -> None:
    assert f"[OPTIONS] {usage} " in call(*command, "--help").out


def test_an_unknown_role_is_one_message() -> None:
    result = call(env={"RUN_MODE": "cook"})
    assert result.code == 2
    assert "should be" in result.err


def test_a_role_from_the_environment_starts_without_a_command() -> None:
    result = call(env={"RUN_MODE": "worker", "DAGMASTER_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing"})
    assert result.code == 2
    assert "the worker has no queue to consume" in result.err


def test_gateway_is_a_role_from_the_environment() -> None:
    result = call(env={"RUN_MODE": "gateway", "DAGMASTER_API_HOST": "nowhere.invalid"})
    assert result.code == 2
    assert "'nowhere.invalid' (DAGMASTER_API_HOST) cannot be resolved" in result.err


# Errors


def test_a_usage_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(Misconfigured("no such thing"), debug=False) == 2
    assert capsys.readouterr().err == "error: no such thing\n"


def test_each_problem_has_its_own_line(capsys: pytest.CaptureFixture[str]) -> None:
    fail(InvalidWorkflow([Problem("bad", file="f.yaml", line=3, column=5), Problem("worse")]), debug=False)
    assert capsys.readouterr().err == "f.yaml:3:5: error: bad\nerror: worse\n"
    fail(WrongInputs(["input 'a' is required", "input 'b' is unknown"]), debug=False)
    assert capsys.readouterr().err == "error: input 'a' is required\nerror: input 'b' is unknown\n"


def test_an_internal_error_says_how_to_see_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(ZeroDivisionError("oops"), debug=False) == 3
    printed = capsys.readouterr().err
    assert printed.startswith("error: ZeroDivisionError: oops\n")
    assert "--debug" in printed
    assert "Traceback" not in printed


def test_a_traceback_is_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ZeroDivisionError("oops")
    except ZeroDivisionError as error:
        fail(error, debug=True)
    assert "Traceback" in capsys.readouterr().err


# The public API


def test_the_package_exports_what_handler_authors_need() -> None:
    assert all(getattr(dagmaster, name) for name in dagmaster.__all__)
    assert dagmaster.register_handler is dagmaster.handler
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = dagmaster.nothing


@pytest.mark.parametrize(
    ("modules", "packages"),
    [
        ("dagmaster.cli.jobs, dagmaster.cli.local", ("httpx", "fastapi", "alembic", *ROLES)),
        ("dagmaster.cli.serve", ("fastapi", "alembic")),
    ],
    ids=["who only asks loads no roles", "a worker loads no application"],
)
def test_a_command_imports_what_it_needs(modules: str, packages: tuple[str, ...]) -> None:
    prefixes = tuple(f"{package}." for package in packages)
    code = f"import sys; import {modules}; print([name for name in sys.modules if f'{{name}}.'.startswith({prefixes})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_command_reports_where_it_crashed() -> None:
    code = "import os, signal; from dagmaster.cli import app; " + (
        "app.app = lambda prog_name: os.kill(os.getpid(), signal.SIGSEGV); app.main()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in ended.stderr
    assert "most recent call first" in ended.stderr


HELP_IN_FORKS = """
import io, json, os, sys
from dagmaster.cli import main
import dagmaster.cli.app, typer.rich_utils  # Every help needs them: loaded once, before the forks.

heavy = {"pydantic", "pydantic_settings", "psycopg", "jinja2", "fastapi", "sqlalchemy"}

def show_help(command):
    sys.argv = ["dagmaster", command, "--help"]
    sys.stdout = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    try:
        main()
    except SystemExit as end:
        shown = sys.stdout.buffer.getvalue().decode()
        return [command, end.code, sorted(heavy & set(sys.modules)), f"Usage: dagmaster {command} " in shown]

for command in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        try:
            os.write(1, f"{json.dumps(show_help(command))}\\n".encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
"""


def test_help_does_not_import_run_time_modules() -> None:
    """Importing pydantic alone takes as long as all the rest."""
    done = subprocess.run([sys.executable, "-c", HELP_IN_FORKS, *COMMANDS], capture_output=True, text=True, check=True)
    helps = [json.loads(line) for line in done.stdout.splitlines()]
    assert helps == [[command, 0, [], True] for command in COMMANDS], done.stderr
