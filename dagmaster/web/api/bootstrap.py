"""The database schema."""

from fastapi import APIRouter, Request

from dagmaster import store
from dagmaster.errors import Invalid
from dagmaster.schemas.assets import PlatformReply, PlatformsSeeded
from dagmaster.schemas.system import Ddl, Deploy, Deployed, Rebuild, SchemaStatus, TableList, TableReply
from dagmaster.store.platforms import list_platforms, seed_platforms
from dagmaster.store.schema import HEAD, current_revision, database_name, list_tables
from dagmaster.web import bootstrap
from dagmaster.web.access import ADMINS, Admitted
from dagmaster.web.services import Conn, ServicesDep

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
    return await bootstrap.deploy(conn, services, caller, command="bootstrap.deploy", dry_run=body.dry_run)


@router.post("/migrate", dependencies=[ADMINS])
async def migrate_schema(caller: Admitted, services: ServicesDep, conn: Conn) -> Deployed:
    """Upgrade the schema."""
    return await bootstrap.deploy(conn, services, caller, command="bootstrap.migrate", dry_run=False)


@router.post("/rebuild", dependencies=[ADMINS])
async def rebuild_schema(
    body: Rebuild, caller: Admitted, request: Request, services: ServicesDep, conn: Conn
) -> Deployed:
    """Destroy all data and create the schema again. The server must be configured to allow it."""
    return await bootstrap.rebuild(conn, request.app, services, caller, body.confirm)


@router.post("/seed-platforms", dependencies=[ADMINS])
async def seed_default_platforms(caller: Admitted, conn: Conn) -> PlatformsSeeded:
    """Add the default platforms that are missing. Changed platforms stay as they are."""
    added = await seed_platforms(conn, actor=caller.name or None, source_app="api")
    return PlatformsSeeded(added=added, platforms=[PlatformReply(**row) for row in await list_platforms(conn)])
