"""The database schema: show it, create it, upgrade it, or drop and recreate it."""

import asyncio

from fastapi import APIRouter, FastAPI, Request

from dagmaster import store
from dagmaster.errors import Forbidden, Invalid
from dagmaster.schemas.assets import PlatformReply, PlatformsSeeded
from dagmaster.schemas.system import Ddl, Deploy, Deployed, Rebuild, SchemaStatus, TableList, TableReply
from dagmaster.store.audit import note_command
from dagmaster.store.connect import Connection
from dagmaster.store.platforms import list_platforms, seed_platforms
from dagmaster.store.schema import HEAD, current_revision, database_name, drop_schema, list_tables
from dagmaster.web.access import ADMINS, Admitted, Caller, Keyring
from dagmaster.web.services import Conn, Services, ServicesDep

router = APIRouter(prefix="/api/v1/bootstrap", tags=["system"])


@router.get("/status", dependencies=[ADMINS])
async def schema_status(conn: Conn) -> SchemaStatus:
    """Show the schema revision of the database and the one that this version needs."""
    revision = await current_revision(conn)
    return SchemaStatus(database=await database_name(conn), revision=revision, head=HEAD, is_current=revision == HEAD)


@router.get("/tables", dependencies=[ADMINS])
async def schema_tables(conn: Conn) -> TableList:
    """List the tables with their sizes; row counts are estimates."""
    return TableList(tables=[TableReply(**row) for row in await list_tables(conn)])


@router.get("/ddl", dependencies=[ADMINS])
async def schema_ddl() -> Ddl:
    """Show the tables as SQL. Migrations add functions, triggers and partitions."""
    return Ddl(ddl=store.ddl.render())


@router.post("/deploy", dependencies=[ADMINS])
async def deploy_schema(body: Deploy, caller: Admitted, services: ServicesDep, conn: Conn) -> Deployed:
    """Create or upgrade the schema. Requires `confirm: "yes"`; `dry_run` shows what would happen."""
    if not body.dry_run and body.confirm != "yes":
        raise Invalid('set confirm: "yes" to continue, or dry_run: true to see what would be done')
    return await _deploy(conn, services, caller, command="bootstrap.deploy", dry_run=body.dry_run)


@router.post("/migrate", dependencies=[ADMINS])
async def migrate_schema(caller: Admitted, services: ServicesDep, conn: Conn) -> Deployed:
    """Upgrade the schema."""
    return await _deploy(conn, services, caller, command="bootstrap.migrate", dry_run=False)


@router.post("/rebuild", dependencies=[ADMINS])
async def rebuild_schema(
    body: Rebuild, caller: Admitted, request: Request, services: ServicesDep, conn: Conn
) -> Deployed:
    """Destroy all data and create the schema again. The server must be configured to allow it."""
    return await _rebuild(conn, request.app, services, caller, body.confirm)


@router.post("/seed-platforms", dependencies=[ADMINS])
async def seed_default_platforms(caller: Admitted, conn: Conn) -> PlatformsSeeded:
    """Add the default platforms that are missing. Changed platforms stay as they are."""
    added = await seed_platforms(conn, actor=caller.name or None, source_app="api")
    return PlatformsSeeded(added=added, platforms=[PlatformReply(**row) for row in await list_platforms(conn)])


async def _deploy(conn: Connection, services: Services, caller: Caller, *, command: str, dry_run: bool) -> Deployed:
    """Upgrade the schema to this version of dagmaster; does nothing if it is current."""
    before = await current_revision(conn)
    if dry_run:
        message = "nothing to do" if before == HEAD else f"it would be upgraded from {before or 'nothing'} to {HEAD}"
        return Deployed(before=before, after=before, is_changed=False, message=message)
    await _upgrade(services)
    return await _deployed(conn, caller, command, before, await current_revision(conn))


async def _rebuild(conn: Connection, app: FastAPI, services: Services, caller: Caller, confirm: str) -> Deployed:
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
