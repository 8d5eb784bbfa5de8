"""Create a starter project."""

import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from dagmaster.errors import Conflict, Invalid

# The path of each file in the project, and its template.
FILES = {
    "dagmaster.toml": "dagmaster.toml.txt",
    "workflows/words.yaml": "workflows/words.yaml.txt",
    "handlers.py": "handlers.py.txt",
    "orders.py": "orders.py.txt",
    "test_workflows.py": "test_workflows.py.txt",
    "README.md": "README.md.txt",
    ".gitignore": "gitignore.txt",
}

app = typer.Typer(add_completion=False)


@app.command()
def init(
    name: Annotated[
        Path,
        typer.Argument(metavar="NAME", help="Folder to create; default: the current folder.", show_default=False),
    ] = Path(),
) -> None:
    """Create a starter project.

    Contains a YAML workflow, a Python workflow, their handlers, a test and the
    settings. Existing files are never changed.

    \b
    Examples:
      dagmaster init orders
    """
    write_project(name)
    for file in FILES:
        typer.echo(f"wrote {name / file}")
    typer.echo("")
    if name != Path():
        typer.echo(f"  cd {shlex.quote(str(name))}")
    typer.echo("  dagmaster dev          # then open http://127.0.0.1:8080/ui/")
    typer.echo("  dagmaster run words    # or run one workflow in this terminal")


def write_project(folder: Path) -> None:
    """Raises Conflict if one of the files exists, before any is written."""
    existing = [file for file in FILES if (folder / file).exists()]
    if existing:
        raise Conflict(
            f"{folder / existing[0]} already exists; nothing was written. Name a new folder: dagmaster init NAME"
        )
    for file, source in FILES.items():
        path, text = folder / file, (files("dagmaster.cli") / "project" / source).read_text(encoding="utf-8")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise Invalid(f"cannot write {path}: {error.strerror}") from error
