"""Database roles."""

import sys
from typing import Annotated

import typer

from dagmaster.cli.failures import tell
from dagmaster.cli.options import JsonOutput, begin
from dagmaster.cli.output import print_json
from dagmaster.errors import Invalid

app = typer.Typer(name="db", add_completion=False, no_args_is_help=True)


@app.callback()
def root() -> None:
    """Manage database roles.

    \b
    Examples:
      dagmaster db create-reader gateway
    """


@app.command("create-reader")
def create_reader(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the role.")],
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from the first line of stdin.")
    ] = False,
    as_json: JsonOutput = False,
) -> None:
    """Create a read-only database role for a gateway.

    The role can read the views of the schema gateway, and no tables. Without
    --password-stdin, a password is generated and printed once. Run the command
    again to change the password or to repair the privileges.

    \b
    Examples:
      dagmaster db create-reader gateway
      dagmaster db create-reader gateway --password-stdin < password.txt
    """
    from secrets import token_urlsafe

    from dagmaster.cli.sessions import run_in_session
    from dagmaster.store import gateway_role

    if password_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
        if not password:
            raise Invalid("stdin has no password: write it as one line")
    else:
        password = token_urlsafe(24)
    is_new = run_in_session(begin(ctx), lambda conn: gateway_role.create_reader(conn, name, password))
    generated = None if password_stdin else password
    if as_json:
        print_json({"role": name, "is_new": is_new, "password": generated})
        return
    done = f"Created role {name}" if is_new else f"Changed the password of role {name} and repaired its privileges"
    if generated is None:
        tell(f"{done}.")
        return
    tell(f"{done}. Store its password safely, it is not shown again:")
    typer.echo(generated)
