"""A forked program behaves like a real one, to itself and to its starter."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from fork_server import PROGRAMS, Forked, fork_server

pytestmark = pytest.mark.acceptance

SECONDS = 60.0
SELF = """
import json, os, signal, sys, threading
print(json.dumps({
    "arguments": sys.argv, "path": sys.path, "name": __name__, "folder": os.getcwd(), "environment": dict(os.environ),
    "prefix": sys.prefix, "threads": threading.active_count(), "files": sorted(os.listdir("/proc/self/fd")),
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "signals": {number.name: str(signal.getsignal(number)) for number in signal.valid_signals() if number < 32},
    "streams": [(one.encoding, one.errors, one.line_buffering) for one in (sys.stdin, sys.stdout, sys.stderr)],
}))
"""
LOCALE = {name: value for name, value in os.environ.items() if name.startswith(("LANG", "LC_"))}
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "TZ": "UTC", "ODD": "a=b\nc", **LOCALE}
# Each exits in a different way.
ENDS = {
    "pass": 0,
    "raise SystemExit": 0,
    "import sys; sys.exit(7)": 7,
    "import sys; sys.exit('why')": 1,
    "raise ValueError('why')": 1,
    "raise KeyboardInterrupt": -signal.SIGINT,
    "import os; os._exit(3)": 3,
    "import os; os.abort()": -signal.SIGABRT,
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": -signal.SIGKILL,
    "import atexit; atexit.register(print, 'last'); print('first')": 0,
    "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()": 0,
}


def run_real(folder: Path, *command: str, **changes: str) -> tuple[int, str]:
    ended = subprocess.run(
        [PROGRAMS / command[0], *command[1:]],
        cwd=folder,
        env=ENVIRONMENT | changes,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    return ended.returncode, ended.stdout


def start_forked(folder: Path, *command: str, **changes: str) -> Forked:
    with (folder / "output").open("wb") as output:
        return Forked(command, folder, ENVIRONMENT | changes, output, output)


def run_forked(folder: Path, *command: str, **changes: str) -> tuple[int, str]:
    code = start_forked(folder, *command, **changes).wait(SECONDS)
    return code, (folder / "output").read_text()


def test_a_forked_process_sees_the_same_environment_as_a_real_one(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SELF)
    for command in (("-c", SELF, "one", "-c"), ("script.py", "one")):
        outputs: list[dict[str, Any]] = []
        for run in (run_real, run_forked):
            code, output = run(tmp_path, "python", *command)
            assert code == 0, output
            outputs.append(json.loads(output))
        assert outputs[0] == outputs[1]


def test_a_forked_process_exits_as_a_real_one(tmp_path: Path) -> None:
    for program, code in ENDS.items():
        ended = run_forked(tmp_path, "python", "-c", program)
        assert ended == run_real(tmp_path, "python", "-c", program)
        assert ended[0] == code


@pytest.mark.parametrize(
    "command", [("--help",), ("version",), ("show", "1", "--data-dir", "/dev/null"), ("nonsense",)]
)
def test_dagmaster_prints_the_same_in_a_forked_process(tmp_path: Path, command: tuple[str, ...]) -> None:
    assert run_forked(tmp_path, "dagmaster", *command) == run_real(tmp_path, "dagmaster", *command)


def test_signals_reach_only_the_process_they_are_sent_to(tmp_path: Path) -> None:
    waits = "import time; print('up', flush=True); time.sleep(60)"
    killed, other = (start_forked(tmp_path, "python", "-c", waits) for _ in range(2))
    os.kill(killed.pid, signal.SIGSTOP)
    assert killed.poll() is None
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait(SECONDS) == -signal.SIGKILL
    assert other.poll() is None
    other.terminate()
    assert other.wait(SECONDS) == -signal.SIGTERM
    other.kill()  # It has ended, and its pid may be reused.


def test_other_modules_run_in_a_real_interpreter(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("import sys\nprint(__name__, sys.argv[1:], 'dagmaster' in sys.modules)")
    assert run_forked(tmp_path, "python", "-m", "module", "one") == (0, "__main__ ['one'] False\n")
    assert run_forked(tmp_path, "python", "-m", "dagmaster", "version")[0] == 0


def test_a_shell_can_pipe_to_and_signal_a_forked_process(tmp_path: Path) -> None:
    script = """
        echo 'import sys; print(sys.stdin.read().upper())' > upper.py
        echo word | python upper.py | tr A-Z a-z
        python -c 'import signal, sys; signal.signal(15, lambda *_: sys.exit(5)); print("up", flush=True); input()' \
            < <(sleep 60 & echo $! > sleeper; wait) > up & waiting=$!
        until grep -q up up 2>/dev/null; do sleep 0.01; done
        kill $waiting; wait $waiting || echo ended with $?
        kill $(cat sleeper)
        python -c 'import os; os.kill(os.getpid(), 9)' || echo ended with $?
    """
    path = f"{fork_server().programs}:{ENVIRONMENT['PATH']}"
    ended = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=ENVIRONMENT | {"PATH": path}, capture_output=True, text=True
    )
    assert ended.stdout.splitlines() == ["word", "", "ended with 5", "ended with 137"], ended.stderr


def test_killing_the_client_kills_its_forked_process(tmp_path: Path) -> None:
    waits = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with subprocess.Popen([fork_server().programs / "python", "-c", waits], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        program.kill()
        assert program.stdout.read() == b""  # No process has the pipe open any more.
    deadline = time.monotonic() + SECONDS
    while Path(f"/proc/{pid}/cwd").exists():  # An ending process closes its files first.
        assert time.monotonic() < deadline, "it still runs"
        time.sleep(0.001)
