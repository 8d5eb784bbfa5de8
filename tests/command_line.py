"""Call the command line in this process."""

import logging
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from typer.testing import CliRunner

from dagmaster.cli.app import app

WORKFLOWS = Path(__file__).parent.parent / "workflows"


@dataclass(frozen=True)
class Called:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return orjson.loads(self.out)


def call(*args: object, env: Mapping[str, str | None] | None = None, input: str | None = None) -> Called:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    on_signal = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        result = CliRunner().invoke(app, [str(arg) for arg in args], env=env, input=input)
    finally:
        root.handlers, root.level = handlers, level
        for number, handler in on_signal.items():  # Signals must not reach a command that has ended.
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
    assert "Traceback" not in result.output
    return Called(result.exit_code, result.stdout, result.stderr)


def write_workflow(folder: Path, text: str, name: str = "flow.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path
