"""What people see in a real terminal, which is a pseudo-terminal of a given width."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest
from command_line import call, write_workflow

FAILING = """\
workflow_id: a_workflow_with_a_rather_long_name
nodes:
  check_the_customers_of_the_last_day:
    handler: fails_always
    queue: default
    params: {}
    retry: {max_attempts: 0}
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
        done = call("run", write_workflow(folder, FAILING), "--handlers", "handlers.py", "--json")
        assert done.code == 1, done.err
        yield done.json["job_id"]


def at_terminal(width: int, *args: str) -> list[str]:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, "-m", "dagmaster", *args]
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=env | {"TERM": "xterm"}):
        os.close(follower)
        seen = b""
        try:
            while piece := os.read(leader, 65536):
                seen += piece
        except OSError:  # what Linux says when the last process has closed the terminal
            pass
    os.close(leader)
    return ESCAPES.sub("", seen.decode()).splitlines()


@pytest.mark.parametrize("width", [80, 100])
def test_lists_are_readable_at_a_narrow_terminal(failed: str, width: int) -> None:
    listed = at_terminal(width, "jobs")
    shown = at_terminal(width, "show", "last")
    assert max(len(line) for line in listed) <= width
    [row] = [line for line in listed if line.startswith(failed)]
    assert "✗ failed" in row
    [node] = [line for line in shown if line.startswith("check_the_customers_of_the_last_day ")]
    assert "✗ failed" in node
    assert "nothing that could be checked" in " ".join(line.strip() for line in shown if line.startswith("    "))
