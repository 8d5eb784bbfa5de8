"""Options that commands share, and the settings and logs that follow from them."""

import os
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagmaster import tracing
from dagmaster.cli.app import Shared
from dagmaster.logs import set_up_logs

if TYPE_CHECKING:  # Pydantic is loaded when a command begins, not to show its help.
    from dagmaster.settings import Settings


class ListForm(StrEnum):
    PLAIN = "plain"
    JSON = "json"
    JSONL = "jsonl"


class TextForm(StrEnum):
    TEXT = "text"
    JSON = "json"


JsonOutput = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Form = Annotated[
    TextForm, typer.Option("--output", "-o", metavar="FORM", help="text or json; json prints the complete result.")
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "-i",
        "--input",
        metavar="NAME=VALUE",
        help="One input; repeatable. Parsed as JSON unless its type is string.",
    ),
]
InputsJson = Annotated[
    str | None, typer.Option("--inputs", metavar="JSON|@FILE", help="All inputs as a JSON object; @- reads stdin.")
]
Handlers = Annotated[
    list[str] | None,
    typer.Option("--handlers", metavar="MODULE|FILE.py", help="Module or file that defines handlers; repeatable."),
]
JobReference = Annotated[
    str, typer.Argument(metavar="JOB", help="Job id or its first digits, `last`, or `last:WORKFLOW`.")
]
Actor = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Name recorded in the audit log.")]
AssetId = Annotated[str, typer.Argument(metavar="ASSET", help="Asset id.")]
Host = Annotated[str | None, typer.Option(help="Address to listen on; default: the setting api_host.")]
Port = Annotated[int | None, typer.Option(help="Port to listen on; 0 picks a free port.", min=0, max=65535)]
Concurrency = Annotated[int | None, typer.Option(help="Maximum number of tasks to run at once.", min=1)]


def settings_of(shared: Shared) -> "Settings":
    chosen: dict[str, Any] = {name: value for name, value in asdict(shared).items() if value is not None}
    if "url" not in chosen and ("data_dir" in chosen or "database_url" in chosen):
        chosen["url"] = None  # An explicit database overrides a configured server.
    from dagmaster.settings import load_settings

    return load_settings(**chosen)


def begin(ctx: typer.Context, *, quiet: bool = True, traced: bool = False) -> "Settings":
    """Load the settings and set up logs. `quiet` is for commands that display data: they log only warnings.

    Servers and submissions are traced; other commands do not load the tracing library.
    """
    settings = settings_of(ctx.obj)
    is_chosen = "log_level" in settings.model_fields_set
    set_up_logs("warning" if quiet and not is_chosen else settings.log_level, settings.log_format)
    if traced or not quiet:
        tracing.set_up(os.environ, ctx.info_name or "cli")
    return settings
