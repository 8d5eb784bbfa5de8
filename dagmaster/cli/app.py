"""The root command: the table of commands, the options they share, and the handling of their errors."""

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from dagmaster.cli.failures import fail


@dataclass(frozen=True, slots=True)
class Shared:
    """The values of the shared options."""

    data_dir: Path | None = None
    database_url: str | None = None
    log_level: str | None = None
    url: str | None = None
    api_key: str | None = None


RUN, JOBS, ASSETS, SERVE, OPERATE = "Run workflows", "Inspect and control jobs", "Assets", "Serve", "Operate"
# Options of the root command, and whether a value follows.
SHARED = {
    "--data-dir": True,
    "--database-url": True,
    "--url": True,
    "--api-key": True,
    "--key": True,
    "--log-level": True,
    "--debug": False,
}
HELP = ["-h", "--help"]
TASK_THREADS = "dagmaster-task"


class Outline(NamedTuple):
    """A command as the help of the root shows it, without loading its module."""

    module: str
    panel: str
    help: str


# The module of each command. A module imports only what its help needs, and the rest in the function of the command:
# help must not wait for pydantic, psycopg or the engine.
COMMANDS: Mapping[str, Outline] = {
    "init": Outline("init", RUN, "Create a starter project."),
    "run": Outline("run", RUN, "Run a workflow in this process and show its result."),
    "submit": Outline("submit", RUN, "Submit a job to the running orchestrators."),
    "validate": Outline("workflows", RUN, "Check workflow files and report every problem."),
    "workflows": Outline("workflows", RUN, "List the available workflows."),
    "backfill": Outline("schedules", RUN, "Start a schedule's jobs for a period in the past."),
    "schedules": Outline("schedules", RUN, "List, pause, resume, trigger and sync schedules."),
    "jobs": Outline("jobs", JOBS, "List the newest jobs."),
    "show": Outline("jobs", JOBS, "Show a job with its nodes and result."),
    "timeline": Outline("timeline", JOBS, "Show the events of a job in order."),
    "logs": Outline("logs", JOBS, "Show the log of a task."),
    "explain": Outline("explain", JOBS, "Explain why a job or a node is not running."),
    "cancel": Outline("job_control", JOBS, "Cancel a job."),
    "pause": Outline("job_control", JOBS, "Pause a job; running tasks may finish."),
    "resume": Outline("job_control", JOBS, "Resume a paused job."),
    "retry": Outline("job_control", JOBS, "Retry the failed nodes of a job."),
    "signal": Outline("job_control", JOBS, "Send a signal to the waiting nodes of a job."),
    "approve": Outline("job_control", JOBS, "Approve a node that waits for approval."),
    "reject": Outline("job_control", JOBS, "Reject a node that waits for approval; the node fails."),
    "assets": Outline("assets", ASSETS, "List assets, and approve, reject, clear and delete their versions."),
    "layers": Outline("layers", ASSETS, "List, publish and unpublish the layers of assets."),
    "platforms": Outline("platforms", ASSETS, "List and add the platforms whose assets are processed."),
    "dev": Outline("roles", SERVE, "Run everything in one process until Ctrl-C."),
    "orchestrator": Outline("roles", SERVE, "Run an orchestrator until stopped."),
    "api": Outline("roles", SERVE, "Serve the HTTP API until stopped."),
    "worker": Outline("roles", SERVE, "Run a worker until stopped."),
    "gateway": Outline("roles", SERVE, "Serve the partners' gateway until stopped."),
    "tiles": Outline("roles", SERVE, "Serve the tiles of assets until stopped."),
    "workers": Outline("instances", OPERATE, "List workers and orchestrators; drain or stop workers."),
    "handlers": Outline("instances", OPERATE, "List the registered handlers."),
    "queues": Outline("instances", OPERATE, "Show the number of tasks in each queue."),
    "doctor": Outline("doctor", OPERATE, "Check the consistency of jobs and the health of the database."),
    "psql": Outline("psql", OPERATE, "Open psql on the database, embedded or not."),
    "migrate": Outline("migrate", OPERATE, "Upgrade or downgrade the database schema."),
    "keys": Outline("keys", OPERATE, "Create, list and revoke API keys."),
    "db": Outline("db", OPERATE, "Manage database roles."),
    "data": Outline("data", OPERATE, "List, query, trace, export and drop tables of Python tasks."),
    "cache": Outline("cache", OPERATE, "Clear cached task results."),
    "prune": Outline("prune", OPERATE, "Remove finished jobs after their retention period."),
    "version": Outline("version", OPERATE, "Show the version."),
}


class LazyGroup(TyperGroup):
    """Imports the module of a command only when the command is called."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self.commands = {
            name: TyperCommand(name=name, help=outline.help, rich_help_panel=outline.panel)
            for name, outline in COMMANDS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, arguments = super().resolve_command(ctx, args)
        return name, load_command(name) if name and command else command, arguments

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        return super().parse_args(ctx, shared_first(args))

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Handle the exceptions that Typer does not display."""
        arguments = sys.argv[1:] if kwargs.get("args") is None else kwargs["args"]
        try:
            if len(arguments) > 1 and arguments[0] in COMMANDS and arguments[-1] in HELP:
                return _show_help(arguments)
            return super().main(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - people see messages, not tracebacks
            sys.exit(fail(error, debug="--debug" in arguments))


def _show_help(arguments: Sequence[str]) -> Any:
    """Bypass the root command: parsing its options loads pydantic, which takes half of the time of help."""
    name, *options = arguments
    return load_command(name).main(args=options, prog_name=f"dagmaster {name}", help_option_names=HELP)


def load_command(name: str) -> Any:
    """A module contains one command, several commands, or a group."""
    command: Any = typer.main.get_command(_load(COMMANDS[name].module).app)
    return getattr(command, "commands", {}).get(name, command)


def _load(module: str) -> Any:
    return import_module(f"dagmaster.cli.{module}")


def shared_first(args: list[str]) -> list[str]:
    """Move the shared options before the command, as the parser needs them; users may put them anywhere."""
    shared: list[str] = []
    others: list[str] = []
    remaining = list(args)
    while remaining and remaining[0] != "--":
        word = remaining.pop(0)
        option, equals, _ = word.partition("=")
        target = shared if option in SHARED else others
        target.append(word)
        if SHARED.get(option) and not equals and remaining:
            target.append(remaining.pop(0))
    return [*shared, *others, *remaining]


app = typer.Typer(
    cls=LazyGroup,
    name="dagmaster",
    help="Durable workflows on PostgreSQL.\n\nTo get started: dagmaster init, then dagmaster dev",
    epilog="The options above may appear anywhere. Settings come from the environment (DAGMASTER_...), .env and "
    "dagmaster.toml. Exit codes: 0 success, 1 job failed, 2 usage error, 3 internal error.",
    context_settings={"help_option_names": HELP},
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    data_dir: Annotated[Path | None, typer.Option(help="Data folder of the embedded PostgreSQL.")] = None,
    database_url: Annotated[
        str | None, typer.Option(help="Use this PostgreSQL server instead: postgresql://user@host/database.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Use a dagmaster server instead of a database: https://dagmaster.example.com.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            "--key",
            metavar="KEY",
            help="API key for the server. Prefer DAGMASTER_API_KEY: other users of this machine can see "
            "command-line options.",
        ),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Log level: debug, info, warning, error or critical.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,  # read in `main`
) -> None:
    ctx.obj = Shared(data_dir, database_url, log_level, url, api_key)
    if ctx.invoked_subcommand is None:
        _start_role(ctx)


def _start_role(ctx: typer.Context) -> None:
    """Start the role that the environment names, as in a container."""
    role = _load("options").settings_of(ctx.obj).run_mode
    if role is None:
        typer.echo(ctx.get_help())
        return
    command = load_command(role)
    with command.make_context(role, [], parent=ctx) as role_ctx:
        command.invoke(role_ctx)


def main() -> None:
    faulthandler.enable(all_threads=True)  # Print a traceback of all threads when the process crashes.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    code: object = 0
    try:
        app(prog_name="dagmaster")
    except SystemExit as end:
        code = end.code
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # The work is done; a signal would only change the exit code.
    if any(thread.name.startswith(TASK_THREADS) for thread in threading.enumerate()):
        # A handler's thread cannot be stopped. Its task was given back, so there is nothing to wait for.
        from dagmaster import tracing

        tracing.flush()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)
    sys.exit(code)  # type: ignore[arg-type]
