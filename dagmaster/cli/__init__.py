"""The command line. Each command's module is loaded when the command is called."""

import sys


def main() -> None:
    if sys.argv[1:] == ["version"]:  # Asked for by scripts, again and again: it needs no command line to be parsed.
        from dagmaster import __version__

        sys.stdout.write(f"dagmaster {__version__}\n")
        return
    from dagmaster.cli import app

    app.main()


__all__ = ["main"]
