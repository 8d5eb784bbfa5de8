"""The command line. Each command's module is loaded when the command is called."""

from dagmaster.cli.app import main

__all__ = ["main"]
