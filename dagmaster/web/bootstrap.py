"""Create the schema, upgrade it, or drop and recreate it."""

import asyncio

from fastapi import FastAPI

from dagmaster import store
from dagmaster.errors import Forbidden, Invalid
from dagmaster.schemas.system import Deployed
from dagmaster.store.audit import note_command
from dagmaster.store.connect import Connection
from dagmaster.store.schema import HEAD, current_revision, database_name, drop_schema
from dagmaster.web.access import Caller, Keyring
from dagmaster.web.services import Services


async def deploy(conn: Connection, services: Services, caller: Caller, *, command: str, dry_run: bool) -> Deployed:
    """Upgrade the schema to this version of dagmaster; does nothing if it is current."""
    before = await current_revision(conn)
    if dry_run:
        message = "nothing to do" if before == HEAD else f"it would be upgraded from {before or 'nothing'} to {HEAD}"
        return Deployed(before=before, after=before, is_changed=False, message=message)
    await _upgrade(services)
    return await _deployed(conn, caller, command, before, await current_revision(conn))


async def rebuild(conn: Connection, app: FastAPI, services: Services, caller: Caller, confirm: str) -> Deployed:
    """Only if the settings allow it, with an API key, and if `confirm` is the name of the database."""
    if not services.settings.allow_destructive_bootstrap:
        raise Forbidden("this server must not destroy data; DAGMASTER_ALLOW_DESTRUCTIVE_BOOTSTRAP would allow it")
    if not caller.name:
        raise Forbidden("destroying data requires an API key")
    name = await database_name(conn)
    if confirm != name:
        raise Invalid(f"to destroy all data, set confirm to the name of the database, {name!r}")
    before = await current_revision(conn)
    await drop_schema(conn)
    await _upgrade(services)
    app.state.keyring = Keyring(services.pool)  # The keys are gone too.
    return await _deployed(conn, caller, "bootstrap.rebuild", before, await current_revision(conn), is_new=True)


async def _upgrade(services: Services) -> None:
    await asyncio.to_thread(store.migrate.upgrade, services.dsn)


async def _deployed(
    conn: Connection, caller: Caller, command: str, before: str | None, after: str | None, *, is_new: bool = False
) -> Deployed:
    data = {"command": command, "actor": caller.name or None, "before": before, "after": after}
    await note_command(conn, data)
    message = f"the schema is at {after}"
    if is_new:
        message += "; all jobs and API keys are gone, create a key with `dagmaster keys create`"
    return Deployed(before=before, after=after, is_changed=is_new or before != after, message=message)
