"""Output in a real terminal: a pseudo-terminal of a given width."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import call, write_workflow
from fork_server import IS_REAL, fork_server

FAILING = """\
workflow_id: a_workflow_with_a_rather_long_name
nodes:
  check_the_customers_of_the_last_day:
    handler: fails_always
    queue: default
    params: {}
    retry: {max_attempts: 0}
"""
TOLERATING = """\
workflow_id: tolerating
nodes:
  may_fail: {handler: fails_always, queue: default, retry: {max_attempts: 0}, allow_failure: true}
"""
HANDLERS = """\
from dagmaster import Permanent, handler

@handler("fails_always")
def fails(ctx):
    raise Permanent("there is no customer of the last day, and without one there is nothing that could be checked")
"""
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def failed(shared_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("terminal")
    (folder / "handlers.py").write_text(HANDLERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("DAGMASTER_DATABASE_URL", shared_dsn)
        assert call("run", write_workflow(folder, TOLERATING, "t.yaml"), "--handlers", "handlers.py").code == 0
        done = call("run", write_workflow(folder, FAILING), "--handlers", "handlers.py", "--json")
        assert done.code == 1, done.err
        yield done.json["job_id"]


def at_terminal(width: int, *args: str) -> list[str]:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, "-m", "dagmaster"] if IS_REAL else [str(fork_server().programs / "dagmaster")]
    env["TERM"] = "xterm"
    with subprocess.Popen([*command, *args], stdin=follower, stdout=follower, stderr=follower, env=env):
        os.close(follower)
        seen = b""
        try:
            while piece := os.read(leader, 65536):
                seen += piece
        except OSError:  # Linux raises this when the last process has closed the terminal.
            pass
    os.close(leader)
    return ESCAPES.sub("", seen.decode()).splitlines()


@pytest.mark.parametrize("width", [80, 100])
def test_lists_fit_a_narrow_terminal(failed: str, width: int) -> None:
    listed = at_terminal(width, "jobs")
    lines = at_terminal(width, "show", failed)
    assert max(len(line) for line in listed) <= width
    [row] = [line for line in listed if line.startswith(failed)]
    assert "✗ failed" in row
    [node] = [line for line in lines if line.startswith("check_the_customers_of_the_last_day ")]
    assert "✗ failed" in node
    [tolerating] = [line for line in listed if " tolerating " in line]
    assert "✓ completed ✗1 " in tolerating
    assert "nothing that could be checked" in " ".join(line.strip() for line in lines if line.startswith("    "))


def test_sentences_wrap_between_words(failed: str) -> None:
    screen = at_terminal(80, "show", "nothing-of-this-name-is-there-and-so-the-line-is-long")
    assert max(len(line) for line in screen) <= 80
    assert "`last` or `last:WORKFLOW`" in " ".join(screen)


def test_a_long_result_prints_one_line_per_node(failed: str, tmp_path: Path) -> None:
    nodes = "".join(
        f"  step_{n}: {{handler: echo, params: {{text: '{'word ' * 30}'}}, next: step_{n + 1}}}\n" for n in range(8)
    )
    path = write_workflow(tmp_path, f"workflow_id: wordy\nnodes:\n{nodes}  step_8: {{handler: hello_world}}\n")
    screen = at_terminal(80, "run", str(path))
    assert max(len(line) for line in screen) <= 80
    cut = [
        line.split()[0] for line in screen if line.startswith("step_") and line.endswith("…")
    ]  # Not the live view's.
    assert cut == [f"step_{n}" for n in range(8)]
    assert screen[-1].startswith("  http://127.0.0.1:8080/ui/jobs/")
    [hint] = [line for line in screen if line.startswith("complete result: ")]
    document = call(*hint.removeprefix("complete result: dagmaster ").split()).json
    assert document["result_data"]["step_7"]["echoed_params"]["text"].count("word") == 30


def test_a_wide_sql_row_fits_and_opens_no_pager(failed: str) -> None:
    screen = at_terminal(80, "psql", "-c", "SELECT 'a' AS first, repeat('word ', 14) AS second, 'b' AS third")
    assert any("RECORD 1" in line for line in screen)
    assert max(len(line) for line in screen) <= 80
