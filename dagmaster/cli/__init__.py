"""The command line. Each command's module is loaded when the command is called."""

import sys
from importlib import import_module


def main() -> None:
    if sys.argv[1:] == ["version"]:  # Asked for by scripts, again and again: it needs no command line to be parsed.
        sys.stdout.write(f"dagmaster {import_module('dagmaster').__version__}\n")
        return
    import_module("dagmaster.cli.app").main()


__all__ = ["main"]
