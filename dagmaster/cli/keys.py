"""Create, list and revoke API keys."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from dagmaster.cli.columns import Listing
from dagmaster.cli.failures import tell
from dagmaster.cli.options import JsonOutput, begin
from dagmaster.cli.output import at_local_time, console, print_json, print_or_tell, print_result
from dagmaster.model.access import Role

if TYPE_CHECKING:
    from dagmaster.store.keys import Key

Actor = Annotated[str, typer.Option("--by", metavar="NAME", help="Name recorded in the audit log.")]

app = typer.Typer(name="keys", add_completion=False, no_args_is_help=True)


@app.callback()
def root() -> None:
    """Create, list and revoke API keys.

    \b
    Examples:
      dagmaster keys create --name ci --role operator
    """


@app.command()
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Option(help="Name of the user or program.")],
    role: Annotated[Role, typer.Option(help="Role of the key.", case_sensitive=False)],
    platform: Annotated[
        str | None, typer.Option(metavar="PLATFORM", help="The one platform of a partner or reviewer; default: all.")
    ] = None,
    expires_days: Annotated[
        float | None, typer.Option(metavar="DAYS", help="Days until the key expires; default: never.", min=0.001)
    ] = None,
    actor: Actor = "cli",
    as_json: JsonOutput = False,
) -> None:
    """Create a key. It is shown once and not stored.

    \b
    Examples:
      dagmaster keys create --name ci --role operator
      KEY=$(dagmaster keys create --name nightly --role partner --expires-days 90)
      dagmaster keys create --name ddh-review --role reviewer --platform ddh
    """
    from dagmaster.cli.sessions import run_in_session
    from dagmaster.store.keys import new_key

    expires_at = datetime.now(UTC) + timedelta(days=expires_days) if expires_days else None
    values: dict[str, Any] = {"name": name, "role": role, "platform_id": platform, "expires_at": expires_at}
    key = run_in_session(begin(ctx), lambda conn: new_key(conn, created_by=actor, **values))
    if as_json:
        print_json({"key_id": key.key_id, "key": key.text, **values})
        return
    limit = f" for platform {platform}" if platform else ""
    tell(f"Created key {key.key_id} with the role {role}{limit}. Store it safely, it is not shown again:")
    typer.echo(key.text)


@app.command("list")
def list_all(
    ctx: typer.Context,
    everyone: Annotated[bool, typer.Option("--all", help="Include revoked keys.")] = False,
    as_json: JsonOutput = False,
) -> None:
    """List the keys, without their secrets.

    \b
    Examples:
      dagmaster keys list --all
    """
    from dagmaster.cli.sessions import run_in_session
    from dagmaster.store.keys import list_keys

    keys = [key for key in run_in_session(begin(ctx), list_keys) if everyone or key.revoked_at is None]
    records = [_record(key) for key in keys]
    if print_or_tell(records, "no keys; create one with `dagmaster keys create`", as_json=as_json):
        return
    titles = ("KEY", "NAME", "ROLE", "PLATFORM", "STATE", "CREATED", "BY", "EXPIRES", "LAST USED")
    listing = Listing(titles, folds=("NAME",), fixed=5)
    for key in keys:
        listing.add(
            key.key_id,
            escape(key.name),
            key.role,
            key.platform_id or "all",
            _state(key),
            at_local_time(key.created_at),
            escape(key.created_by),
            at_local_time(key.expires_at) or "never",
            at_local_time(key.last_used_at) or "never",
        )
    listing.print(console())


@app.command()
def revoke(
    ctx: typer.Context,
    key_or_name: Annotated[str, typer.Argument(metavar="KEY_OR_NAME", help="Key id or name.")],
    actor: Actor = "cli",
    as_json: JsonOutput = False,
) -> None:
    """Revoke a key.

    \b
    Examples:
      dagmaster keys revoke ci
    """
    from dagmaster.cli.sessions import run_in_session
    from dagmaster.store.keys import revoke_key

    key = run_in_session(begin(ctx), lambda conn: revoke_key(conn, key_or_name, actor=actor))
    print_result(_record(key), f"Revoked key {key.key_id} ({key.name})", as_json=as_json)


def _state(key: "Key") -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= datetime.now(UTC) else "in use"


def _record(key: "Key") -> dict[str, Any]:
    return {**asdict(key), "state": _state(key)}


@app.command("signing-secret")
def signing_secret(ctx: typer.Context) -> None:
    """Print the secret that signs callbacks.

    Receivers use it to verify that a callback is genuine.

    \b
    Examples:
      dagmaster keys signing-secret
    """
    from dagmaster.cli.sessions import run_in_session
    from dagmaster.store.secrets import CALLBACK_SIGNING, get_secret

    settings = begin(ctx)
    secret = run_in_session(settings, lambda conn: get_secret(conn, CALLBACK_SIGNING, chosen=settings.chosen_secret()))
    typer.echo(secret.decode())
