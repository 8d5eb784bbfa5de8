"""Run what a page of the documentation says, from top to bottom, as a reader would.

Blocks in sh, bash and console are executed, python is executed, sql is run on the page's database, whole workflows in
yaml are validated, json is parsed. Comments in front of a block say more:

    file: NAME          write the block to this file of the page's folder
    from: PATH          and it is the same as this file of the repository
    nodes               the yaml is the nodes of a workflow, not a whole one
    invalid             `dagmaster validate` must refuse it
    handlers elsewhere  the workflow names handlers that no worker has
    terminal            run in a terminal of 80 columns, where output is laid out for people
    fails: CODE         the commands end with this exit code; -15 is that of a process that SIGTERM ends
    output              lines that the block before has written, in this order; `...` stands for anything
    scope               the data with which the expressions and conditions of the page are evaluated
    expressions         lines of EXPRESSION => JSON
    conditions          lines of CONDITION => true or false
    background          a process that runs until the end of the page
    background: WORD    the same, and the page goes on when it has said this
    not run: REASON     it cannot be run here

and in the first lines of a page:

    page: fresh         nothing is prepared: the first command makes the database
    page: server        DAGMASTER_DATABASE_URL names an empty database of a server

Ports that pages name stand for free ones, so that pages can be read side by side.
"""

import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import psycopg
from docs_pages import ESCAPES, ROOT, Block, Page, find_missing
from fork_server import IS_REAL, PROGRAMS, fork_server
from ports import held_port
from type_checker import CONFIGURATION

from dagmaster.model.conditions import compile_condition
from dagmaster.model.expressions import compile_template
from dagmaster.store.embedded import EmbeddedServer
from dagmaster.store.migrate import upgrade

COMMAND_SECONDS = 120
STOP_SECONDS = 60
FIRST_WORDS_SECONDS = 10
READY_SECONDS = 60
SHELLS = ("sh", "bash", "console")
PORTS = ("8080", "8081", "9000")
REAL_PAGES = ("README.md",)  # The programs of all other pages are forks.
FOREIGN = re.compile(r"DAGMASTER_|POSTGRES_|PG[A-Z]+$|DATABASE_URL$|RUN_MODE$|WORKER_|LOG_|DAG_")


class DocumentationWrong(AssertionError):
    """A page is wrong."""


class Ended(NamedTuple):
    code: int
    output: str


class Reader:
    """Follows a page in its own folder."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder = folder
        self._env = env
        self._dsn: str | None = None
        self._state = folder.parent / "shell.state"
        # Servers are kept until the end of the page, so that not every command starts and stops one.
        self._held: dict[Path, EmbeddedServer] = {}
        self._stack = ExitStack()
        self._output = ""
        self.outputs: dict[str, str] = {}
        self._scope: dict[str, Any] = {}
        self._valid: list[Path] = []
        self._workflows = 0
        self._background: list[tuple[Block, subprocess.Popen[bytes], Path]] = []
        self._ports = {port: self._stack.enter_context(held_port()) for port in PORTS}
        self._env["DAGMASTER_API_PORT"] = self._ports[PORTS[0]]

    def read(self, page: Page) -> None:
        for block in page.blocks:
            self._follow(block)
        if self._valid:
            self._expect(Block(page.name, "yaml", ""), self._call_validate(self._valid))
        self._stop_background()

    def _follow(self, block: Block) -> None:
        if "not run" in block.marks:
            return
        by_mark = {
            "output": self._compare_with_last,
            "scope": self._take_scope,
            "expressions": self._evaluate,
            "conditions": self._evaluate,
            "background": self._start,
            "file": self._write_file,
        }
        by_language = {
            **dict.fromkeys(SHELLS, self._run_commands),
            "python": self._run_python,
            "sql": self._query,
            "json": lambda block: orjson.loads(block.text),
            "yaml": lambda block: None,
            "text": lambda block: None,
        }
        if block.language not in by_language and "file" not in block.marks:
            raise DocumentationWrong(f"{block.place}: nobody knows what to do with {block.language!r}")
        marked = next((by_mark[mark] for mark in by_mark if mark in block.marks), None)
        (marked or by_language[block.language])(block)
        if block.is_workflow:
            self._validate(block)

    # Files and workflows

    def _write_file(self, block: Block) -> None:
        self._write(block, block.marks["file"], block.text)

    def _write(self, block: Block, name: str, text: str) -> Path:
        source = block.marks.get("from")
        if source and (ROOT / source).read_text(encoding="utf-8") != text:
            raise DocumentationWrong(f"{block.place}: this is not what is in {source}")
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._to_free_ports(text), encoding="utf-8")
        return path

    def _to_free_ports(self, text: str) -> str:
        return re.sub(rf"\b({'|'.join(PORTS)})\b", lambda match: self._ports[match[0]], text)

    def _as_written(self, text: str) -> str:
        for port, free in self._ports.items():
            text = re.sub(rf"\b{free}\b", port, text)
        return text

    def _validate(self, block: Block) -> None:
        self._workflows += 1
        name = block.marks.get("file") or f".validated/{self._workflows}.yaml"
        text = block.text
        if "nodes" in block.marks:
            inner = "".join(f"  {line}" for line in text.splitlines(keepends=True))
            text = f"workflow_id: fragment_{self._workflows}\nadditional_inputs: true\nnodes:\n{inner}"
        path = self._write(block, name, text)
        if "handlers elsewhere" in block.marks:
            command = ["dagmaster", "validate", str(path.relative_to(self._folder))]
            self._expect(Block(block.place, block.language, text), self._execute(command))
            return
        if "invalid" not in block.marks:
            self._valid.append(path)  # All together at the end of the page, because a process for each takes long.
            return
        ended = self._call_validate([path])
        self._output = ended.output
        self._expect(Block(block.place, block.language, text, {"fails": "2"}), ended)

    def _call_validate(self, paths: Sequence[Path]) -> Ended:
        modules = [str(path) for path in self._folder.rglob("handlers.py") if "examples" not in path.parts]
        known = [f"--handlers={module}" for module in modules or ["dagmaster.handlers.basic"]]
        return self._execute(
            ["dagmaster", "validate", *(str(path.relative_to(self._folder)) for path in paths), *known]
        )

    def _take_scope(self, block: Block) -> None:
        self._scope = orjson.loads(block.text)

    def _evaluate(self, block: Block) -> None:
        for line in filter(str.strip, block.text.splitlines()):
            source, _, expected = line.rpartition(" => ")
            if "conditions" in block.marks:
                value: Any = compile_condition(source.strip()).evaluate(self._scope).matched
            else:
                value = compile_template(source.strip()).resolve(self._scope)
            if orjson.dumps(value) != orjson.dumps(orjson.loads(expected)):
                raise DocumentationWrong(f"{block.place}: {source.strip()} gives {value!r}")

    # Commands

    def _run_commands(self, block: Block) -> None:
        self._run_them(block)
        for users_file in self._folder.rglob("postgres.users"):
            if users_file.parent not in self._held:
                self.hold(users_file.parent)

    def _run_them(self, block: Block) -> None:
        if block.language != "console":
            self._output = self._shell(block, block.text)
            return
        for command, expected in _split_console(block.text):
            self._output = self._shell(block, command)
            self._compare(Block(block.place, "text", expected), self._output)

    def _shell(self, block: Block, text: str) -> str:
        """Variables and the working folder persist across blocks, as in a terminal."""
        script = (
            f"set -a -e -o pipefail\n[ ! -f {self._state} ] || . {self._state}\n"
            "_keep() { unset COLUMNS TERM; "
            f"export -p > {self._state}; printf 'cd %q\\n' \"$PWD\" >> {self._state}; }}\n"
            f"trap _keep EXIT\n{self._to_free_ports(text)}"
        )
        ended = (self._execute_in_terminal if "terminal" in block.marks else self._execute)(["bash", "-c", script])
        self._expect(block, ended)
        return ended.output

    def _execute(self, command: Sequence[str]) -> Ended:
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(COMMAND_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                code = 124
            output.seek(0)
            return Ended(code, self._as_written(output.read().decode(errors="replace")))

    def _execute_in_terminal(self, command: Sequence[str]) -> Ended:
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        env = {name: value for name, value in self._env.items() if name != "COLUMNS"} | {"TERM": "xterm"}
        process = subprocess.Popen(
            ["timeout", str(COMMAND_SECONDS), *command],
            cwd=self._folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
        )
        os.close(follower)
        seen = b""
        with suppress(OSError):  # Linux raises this when the last process has closed the terminal.
            while piece := os.read(leader, 65536):
                seen += piece
        os.close(leader)
        return Ended(process.wait(), self._as_written(ESCAPES.sub("", seen.decode(errors="replace"))))

    def _expect(self, block: Block, ended: Ended) -> None:
        expected_code = int(block.marks.get("fails", 0))
        if ended.code != expected_code:
            raise DocumentationWrong(
                f"{block.place}: exit code {ended.code}, not {expected_code}\n{block.text}\n--- output\n{ended.output}"
            )

    def _run_python(self, block: Block) -> None:
        script = f'[ ! -f {self._state} ] || . {self._state}; exec python -c "$0"'
        ended = self._execute(["bash", "-c", script, self._to_free_ports(block.text)])
        self._output = ended.output
        self._expect(block, ended)

    def _compare_with_last(self, block: Block) -> None:
        self._compare(block, self._output)
        self.outputs[block.place] = self._output

    def _compare(self, block: Block, output: str) -> None:
        missing = find_missing(block.text, output)
        if missing is not None:
            raise DocumentationWrong(f"{block.place}: this line does not come: {missing!r}\n--- output\n{output}")

    def _query(self, block: Block) -> None:
        if self._dsn is None:
            raise DocumentationWrong(f"{block.place}: the page has no database yet")
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            for statement in filter(str.strip, block.text.split(";\n")):
                rows = conn.execute(statement.encode())
                if rows.description:
                    self._output = "\n".join(" ".join(map(str, row)) for row in rows.fetchall())

    # Background processes

    def _start(self, block: Block) -> None:
        log = self._folder.parent / f"background-{len(self._background)}.log"
        state = f"[ ! -f {self._state} ] || . {self._state}\n"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"{state}exec {self._to_free_ports(block.text)}"],
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._background.append((block, process, log))
        word = block.marks["background"]
        deadline = time.monotonic() + (READY_SECONDS if word else FIRST_WORDS_SECONDS)
        while not _has_said(log, word) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self._output = self._as_written(log.read_text(errors="replace"))
        if word and word not in self._output:
            raise DocumentationWrong(f"{block.place}: it does not say {word!r}\n{self._output}")

    def _stop_background(self) -> None:
        """Terminate them as an operator would. Each must exit normally."""
        for _, process, _ in self._background:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for block, process, log in self._background:
            try:
                code = process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                raise DocumentationWrong(f"{block.place}: does not stop\n{log.read_text(errors='replace')}") from None
            self._expect(block, Ended(code, log.read_text(errors="replace")))

    def connect(self, server: EmbeddedServer, *, is_server: bool) -> None:
        """Set the page's database: this one, or a new one that stands for a remote server."""
        self._dsn = server.dsn
        if is_server:
            with psycopg.connect(server.dsn, autocommit=True) as conn:
                conn.execute("CREATE DATABASE fleet")
            self._dsn = self._env["DAGMASTER_DATABASE_URL"] = server.dsn_of("fleet")
            self._env["DAGMASTER_LOG_DIR"] = str(self._folder.parent / "logs")  # Not those of this machine.

    def hold(self, data_dir: Path) -> EmbeddedServer:
        self._held[data_dir] = self._stack.enter_context(EmbeddedServer.start(data_dir))
        return self._held[data_dir]

    def close(self) -> None:
        for _, process, _ in self._background:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._stack.close()


def _has_said(log: Path, word: str) -> bool:
    return word in log.read_text(errors="replace") if word else log.stat().st_size > 0


def _split_console(text: str) -> Iterator[tuple[str, str]]:
    """`$ command` lines, continued by `> ` lines, each with the output that follows it."""
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        lines = part.splitlines(keepends=True)
        length = 1 + next((n for n, line in enumerate(lines[1:]) if not line.startswith("> ")), len(lines) - 1)
        yield "".join(line.removeprefix("> ") for line in lines[:length]), "".join(lines[length:])


@contextmanager
def prepared(page: Page, template: Path) -> Iterator[Reader]:
    """A folder with the repository's workflows and examples, a database, and a reader."""
    # Not in pytest's temporary folder: as root, the server runs as another user, who cannot enter it.
    home = Path(tempfile.mkdtemp(prefix="dagmaster-docs-"))
    home.chmod(0o755)
    folder = home / "dagmaster"
    folder.mkdir()
    (home / ".mypy.ini").write_text(CONFIGURATION)
    for name in ("workflows", "examples"):
        shutil.copytree(ROOT / name, folder / name)
    reader = Reader(folder, _clean_env(home, is_real=IS_REAL or page.name in REAL_PAGES))
    try:
        if page.kind != "fresh" and any(block.language in (*SHELLS, "sql") for block in page.blocks):
            subprocess.run(["cp", "-a", template, folder / ".dagmaster"], check=True)
            reader.connect(reader.hold(folder / ".dagmaster"), is_server=page.kind == "server")
        yield reader
    finally:
        reader.close()
        shutil.rmtree(home, ignore_errors=True)


def _clean_env(home: Path, *, is_real: bool) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
    programs = PROGRAMS if is_real else fork_server().programs
    path = os.pathsep.join([str(programs), str(PROGRAMS), inherited["PATH"]])
    plain = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1", "TZ": "UTC"}
    # A plugin for this project's own tests, which takes seconds to load.
    return inherited | plain | {"PATH": path, "HOME": str(home), "PYTEST_ADDOPTS": "-p no:schemathesis"}


def make_template(folder: Path) -> Path:
    """A data folder with the schema, to be copied for each page."""
    with EmbeddedServer.start(folder) as server:
        upgrade(server.dsn)
    return folder
