"""Write the commands and options of the real command line into docs/reference/cli.md."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from dagmaster.cli.app import COMMANDS, app, load_command

PAGE = Path(__file__).parents[1] / "reference" / "cli.md"
BEGIN, END = "<!-- begin of what docs/tools/cli_reference.py writes -->", "<!-- end -->"
NOT_LISTED = {"help", "install_completion", "show_completion"}


def render() -> str:
    return "\n".join([BEGIN, "", *_lines(), END])


def renew(page: str) -> str:
    """The page with its generated part replaced."""
    before, _, following = page.partition(BEGIN)
    return before + render() + following.partition(END)[2]


def _lines() -> Iterator[str]:
    yield from ["### Options of all commands", ""]
    yield from _table("Option", [param for param in typer.main.get_command(app).params if param.name not in NOT_LISTED])
    for name in COMMANDS:
        yield from _command(f"dagmaster {name}", load_command(name))


def _command(title: str, command: Any) -> Iterator[str]:
    arguments = [param for param in command.params if not param.opts[0].startswith("-")]
    options = [param for param in command.params if param not in arguments and param.name not in NOT_LISTED]
    usage = [title, *map(_argument, arguments), *(["[OPTIONS]"] if options else [])]
    yield from [f"### {title}", "", f"`{' '.join(usage)}`", "", *_help(command)]
    yield from _table("Argument", arguments)
    yield from _table("Option", options)
    for name, inner in getattr(command, "commands", {}).items():
        yield from _command(f"{title} {name}", inner)


def _help(command: Any) -> Iterator[str]:
    """Without the examples, which the how-to guides have."""
    for paragraph in (command.help or "").partition("\b")[0].strip().split("\n\n"):
        yield from [" ".join(paragraph.split()), ""]


def _argument(param: Any) -> str:
    return str(param.metavar) if param.required else f"[{param.metavar}]"


def _table(head: str, params: list[Any]) -> Iterator[str]:
    if not params:
        return
    yield from [f"| {head} | Default | Meaning |", "|---|---|---|"]
    for param in params:
        default = param.default
        written = "" if default in (None, False, "") or callable(default) else f"`{default}`"
        yield f"| {_names(param)} | {written} | {_escaped(param.help or '')} |"
    yield ""


def _names(param: Any) -> str:
    if not param.opts[0].startswith("-"):
        return f"`{_escaped(param.metavar)}`"
    value = "" if param.is_flag else f" {param.metavar or param.name.upper()}"
    return ", ".join(f"`{_escaped(name + value)}`" for name in param.opts)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(renew(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
