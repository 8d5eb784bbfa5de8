"""Watch files: reload edited workflows, and restart the process after an edit of Python code."""

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import typer

from dagmaster.authoring.catalog import Catalog
from dagmaster.authoring.preparation import queues_of
from dagmaster.cli.failures import tell
from dagmaster.errors import DagmasterError

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
CHECK_SECONDS = 60.0
INSTALLED = ("site-packages", "dist-packages")

Stamps = Mapping[Path, tuple[int, int]]


@dataclass(slots=True)
class Reloader:
    """Running jobs keep their definition; new jobs use the reloaded one.

    `needs_restart` is set when the process should restart.
    """

    catalog: Catalog
    handlers: Sequence[str]
    queues: Sequence[str]
    on_change: Callable[[], Awaitable[None]] | None = None  # such as updating the schedules
    needs_restart: bool = False
    _seen: Stamps = field(default_factory=dict)
    _broken: Stamps = field(default_factory=dict)

    async def run(self, stop: asyncio.Event) -> None:
        """Watch until a restart is needed; then set `stop`."""
        self._seen = stamps(python_files(self.handlers))
        while not stop.is_set():
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self._reload_workflows()
            except (DagmasterError, OSError, psycopg.Error) as error:
                log.warning("cannot reload the workflows: %s", error)
            if self._misses_a_queue() or await self._has_new_python():
                self.needs_restart = True
                stop.set()

    async def _reload_workflows(self) -> None:
        workflows, sources, problems = self.catalog.workflows, self.catalog.sources, self.catalog.problems
        self.catalog.reload()
        now = self.catalog.problems
        broken = {name for name, file in sources.items() if any(problem.is_error for problem in now.get(file, ()))}
        changed = list(changes(workflows, self.catalog.workflows, broken))
        for line in changed:
            typer.echo(f"reloaded    {line}")
        for file, current in now.items():
            if problems.get(file) != current:
                tell(*map(str, current))
        if changed and self.on_change is not None:
            await self.on_change()

    def _misses_a_queue(self) -> bool:
        named = {queue for workflow in self.catalog.workflows.values() for queue in queues_of(workflow)}
        missing = sorted(named - set(self.queues))
        if missing:
            typer.echo(f"restarting  to consume {', '.join(missing)}")
        return bool(missing)

    async def _has_new_python(self) -> bool:
        now = stamps(self._seen)
        changed = [path for path in self._seen if now.get(path) != self._seen[path]]
        if not changed or now == self._broken:
            return False
        names = ", ".join(sorted(_display_path(path) for path in changed))
        problem = await check_python(self.handlers)
        if problem:
            self._broken = now  # Reported once; the file is read again after the next edit.
            typer.echo(f"not loaded  {names} changed; still using the previous version")
            tell(problem)
            return False
        typer.echo(f"restarting  {names} changed")
        return True


def changes(before: Mapping[str, object], after: Mapping[str, object], broken: Collection[str] = ()) -> Iterator[str]:
    """`broken` are those whose file has errors now."""
    for name in sorted({*before, *after}):
        if name not in before:
            yield f"{name} (new)"
        elif name not in after:
            yield f"{name} (not available: its file has errors)" if name in broken else f"{name} (removed)"
        elif before[name] is not after[name] and before[name] != after[name]:
            yield f"{name} (changed)"


def python_files(handlers: Sequence[str]) -> list[Path]:
    """The files of handlers and of modules imported from the working folder, without installed packages."""
    here = Path.cwd().resolve()
    named = [Path(spec).expanduser().resolve() for spec in handlers if spec.endswith(".py")]
    loaded = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    own = [Path(file).resolve() for file in loaded if file.startswith(f"{here}{os.sep}")]
    own = [path for path in own if not set(path.parts) & set(INSTALLED)]
    return sorted({*named, *own})


def stamps(paths: Sequence[Path] | Stamps) -> Stamps:
    stamps_by_path: dict[Path, tuple[int, int]] = {}
    for path in paths:
        try:
            stat = path.stat()
        except OSError:  # An editor may be about to replace it.
            continue
        stamps_by_path[path] = (stat.st_mtime_ns, stat.st_size)
    return stamps_by_path


async def check_python(handlers: Sequence[str]) -> str | None:
    """The error with which a new process fails to load the handlers; None if it loads them."""
    options = [f"--handlers={spec}" for spec in handlers]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dagmaster", "workflows", "--json", *options),
        env={name: value for name, value in os.environ.items() if name != "DAGMASTER_URL"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, errors = await asyncio.wait_for(process.communicate(), CHECK_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        return f"not loaded within {CHECK_SECONDS:.0f} s"
    return errors.decode(errors="replace").strip() if process.returncode else None


def start_again(port: int, execute: Callable[[str, list[str]], object] = os.execv) -> None:
    """Restart with the same arguments on the same port. The embedded server keeps running."""
    sys.stdout.flush()
    sys.stderr.flush()
    chosen = ["--port", str(port)]
    arguments = sys.argv[1:-2] if sys.argv[-2:] == chosen else sys.argv[1:]
    execute(sys.executable, [sys.executable, "-m", "dagmaster", *arguments, *chosen])


def _display_path(path: Path) -> str:
    here = Path.cwd().resolve()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
