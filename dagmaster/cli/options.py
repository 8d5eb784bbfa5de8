"""What commands have in common: the shared options, and the settings and logs that follow from them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from dagmaster.logs import set_up_logs
from dagmaster.settings import Settings, load_settings

JsonOutput = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Inputs = Annotated[
    list[str] | None,
    typer.Option("-i", "--input", metavar="NAME=VALUE", help="One input; again for each. Not a text? Then JSON."),
]
InputsJson = Annotated[
    str | None, typer.Option("--inputs", metavar="JSON|@FILE", help="All inputs as a JSON object; @- reads stdin.")
]
Handlers = Annotated[
    list[str] | None,
    typer.Option("--handlers", metavar="MODULE|FILE.py", help="Where handlers are defined; again for more."),
]
JobId = Annotated[int, typer.Argument(metavar="JOB", help="The job's id.", min=1, max=2**63 - 1)]
Concurrency = Annotated[int | None, typer.Option(help="How many tasks run at once.", min=1)]


@dataclass(frozen=True, slots=True)
class Options:
    data_dir: Path | None = None
    database_url: str | None = None
    log_level: str | None = None
    debug: bool = False

    def settings(self) -> Settings:
        given: dict[str, Any] = {
            "data_dir": self.data_dir,
            "database_url": self.database_url,
            "log_level": self.log_level,
        }
        return load_settings(**{name: value for name, value in given.items() if value is not None})


def begin(ctx: typer.Context, *, quiet: bool = True) -> Settings:
    """The settings, with the logs set up. `quiet` is for commands that show something: they log only what is wrong."""
    options: Options = ctx.obj
    settings = options.settings()
    is_chosen = "log_level" in settings.model_fields_set
    set_up_logs("warning" if quiet and not is_chosen else settings.log_level, settings.log_format)
    return settings
