"""The command line. Each command's module is loaded when the command is called."""

import sys


def main() -> None:
    if sys.argv[1:] == ["version"]:  # Scripts call it often, so it skips the parsing of the command line.
        from dagmaster import __version__

        sys.stdout.write(f"dagmaster {__version__}\n")
        return
    from dagmaster.cli import app

    app.main()


__all__ = ["main"]
