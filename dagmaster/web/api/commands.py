"""Commands on the whole system, each recorded in the audit log, and the cache of task results."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, Query, Request
from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from dagmaster import store
from dagmaster.assets import layers
from dagmaster.errors import DagmasterError, Forbidden, Invalid, UnknownCommand
from dagmaster.http.errors import documented
from dagmaster.model.access import Role
from dagmaster.model.redact import redact, redact_text
from dagmaster.schemas.common import Body, Json
from dagmaster.schemas.system import CommandCall, CommandList, CommandReply, CommandSummary
from dagmaster.schemas.task_cache import CacheCleared
from dagmaster.store.audit import note_command
from dagmaster.store.connect import Connection
from dagmaster.store.notifications import RELOAD
from dagmaster.store.schema import current_revision
from dagmaster.store.task_cache import clear_results
from dagmaster.web.access import OPERATING, OPERATORS, Admitted, Caller, Keyring
from dagmaster.web.assets import Actor
from dagmaster.web.services import Conn, Services, ServicesDep

router = APIRouter(prefix="/api/v1", tags=["system"])


@dataclass(frozen=True, slots=True)
class CommandContext:
    """The resources of a command."""

    app: FastAPI
    services: Services
    conn: Connection
    actor: str | None = None


class NoParams(Body):
    """A command without parameters."""


AssetId = Annotated[str, Field(min_length=1, max_length=64)]


class OneAsset(Body):
    asset_id: AssetId


class OneOrAllLayers(Body):
    """The layer of one asset, or all layers."""

    asset_id: AssetId | None = None
    all: bool = False

    @model_validator(mode="after")
    def _names_one_or_all(self) -> "OneOrAllLayers":
        if (self.asset_id is None) is not self.all:
            raise ValueError("give either asset_id or all: true")
        return self


RunCommand = Callable[[CommandContext, Any], Awaitable[Json]]


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    description: str
    roles: frozenset[Role]
    params: type[Body]
    run: RunCommand

    def summary(self) -> CommandSummary:
        return CommandSummary(
            name=self.name,
            description=self.description,
            roles=sorted(self.roles),
            params=self.params.model_json_schema(),
        )


COMMANDS: dict[str, Command] = {}


def command(
    name: str, params: type[Body] = NoParams, roles: frozenset[Role] = OPERATING
) -> Callable[[RunCommand], RunCommand]:
    """Register a command; its docstring is its description."""

    def register(run: RunCommand) -> RunCommand:
        COMMANDS[name] = Command(name, run.__doc__ or "", roles, params, run)
        return run

    return register


@command("schema.migrate", roles=frozenset({Role.ADMIN}))
async def migrate_schema(context: CommandContext, _: NoParams) -> Json:
    """Upgrade the database schema to this version of dagmaster."""
    before = await current_revision(context.conn)
    await asyncio.to_thread(store.migrate.upgrade, context.services.dsn)
    after = await current_revision(context.conn)
    return {"before": before, "after": after, "is_changed": before != after}


@command("cache.invalidate")
async def invalidate_caches(context: CommandContext, _: NoParams) -> Json:
    """Reload the workflows and clear the cache of keys."""
    await context.services.reload_workflows()
    await context.services.sync_schedules(context.conn)
    context.app.state.keyring = Keyring(context.services.pool)
    catalog = context.services.catalog
    return {"workflows": len(catalog.workflows), "files_with_problems": len(catalog.problems)}


@command("metadata.publish", OneOrAllLayers)
async def publish_layers(context: CommandContext, params: OneOrAllLayers) -> Json:
    """Write the layer of an asset, or those of all, to the catalogue and the STAC collection."""
    if params.asset_id is None:
        return asdict(await layers.publish_all(context.conn, actor=context.actor))
    return (await layers.publish(context.conn, params.asset_id, actor=context.actor)).as_record()


@command("metadata.unpublish", OneAsset)
async def unpublish_layer(context: CommandContext, params: OneAsset) -> Json:
    """Remove the layer of an asset from the catalogues and the STAC collection."""
    dsn = context.services.settings.external_dsn()
    return (await layers.unpublish(context.conn, params.asset_id, actor=context.actor, external_dsn=dsn)).as_record()


@command("metadata.publish_external", OneAsset)
async def publish_layer_externally(context: CommandContext, params: OneAsset) -> Json:
    """Write the layer of a public asset to the external database."""
    dsn = context.services.settings.external_dsn()
    publication = await layers.publish_externally(context.conn, params.asset_id, actor=context.actor, external_dsn=dsn)
    return publication.as_record()


@command("asset.reindex")
async def reindex_assets(context: CommandContext, _: NoParams) -> Json:
    """Recompute the latest approved version of every asset, and the projections of published layers."""
    dsn = context.services.settings.external_dsn()
    corrected, report = await layers.reindex(context.conn, actor=context.actor, external_dsn=dsn)
    return {"assets_corrected": corrected, "layers": asdict(report)}


@router.get("/commands", dependencies=[OPERATORS])
async def list_commands() -> CommandList:
    """List the commands and their parameters."""
    return CommandList(commands=[command.summary() for command in COMMANDS.values()])


@router.post("/commands/{name}", responses=documented(404, 409), dependencies=[OPERATORS])
async def run_command(
    name: str, caller: Admitted, request: Request, services: ServicesDep, conn: Conn, body: CommandCall | None = None
) -> CommandReply:
    """Run a command and return its result. Repeating a command is safe."""
    call = body or CommandCall()
    context = CommandContext(request.app, services, conn, call.actor or caller.name or None)
    return await _execute(context, caller, name, call.params)


@router.post("/commands/metadata/{verb}/{asset_id}", responses=documented(404, 409), dependencies=[OPERATORS])
async def run_layer_command(
    verb: Literal["publish", "unpublish"],
    asset_id: str,
    caller: Admitted,
    request: Request,
    services: ServicesDep,
    conn: Conn,
    actor: Actor = None,
) -> CommandReply:
    """Publish or unpublish the layer of an asset, as the command of that name does."""
    context = CommandContext(request.app, services, conn, actor or caller.name or None)
    return await _execute(context, caller, f"metadata.{verb}", {"asset_id": asset_id})


@router.delete("/cache", dependencies=[OPERATORS])
async def clear_cache(
    caller: Admitted, conn: Conn, handler: Annotated[str | None, Query(min_length=1, max_length=128)] = None
) -> CacheCleared:
    """Remove cached results of one handler or of all, so that the next tasks run again."""
    removed = await clear_results(conn, handler, actor=caller.name or None, source_app="api")
    return CacheCleared(handler=handler, removed=removed)


async def _execute(context: CommandContext, caller: Caller, name: str, body: Json) -> CommandReply:
    """Validate and run a command; records one event, whether it succeeds or not."""
    command = COMMANDS.get(name)
    if command is None:
        raise UnknownCommand(f"there is no command {name!r}; valid are {', '.join(COMMANDS)}")
    if caller.role not in command.roles:
        raise Forbidden(
            f"a key of role {caller.role} may not run {name}; it takes {' or '.join(sorted(command.roles))}"
        )
    try:
        params = command.params.model_validate(body)
    except ValidationError as error:
        raise Invalid("; ".join(_problem(problem) for problem in error.errors())) from error
    began = perf_counter()
    record = {"command": name, "actor": context.actor, "params": redact(body)}
    try:
        result = await command.run(context, params)
    except DagmasterError as error:
        text = redact_text(str(error))
        await note_command(context.conn, record, error=text, duration_ms=_milliseconds(began))
        raise
    duration_ms = _milliseconds(began)
    await note_command(context.conn, {**record, "result": redact(result)}, duration_ms=duration_ms)
    context.services.notifier.notify(RELOAD)
    return CommandReply(command=name, result=result, duration_ms=duration_ms)


def _problem(detail: ErrorDetails) -> str:
    place = ".".join(["params", *(str(part) for part in detail["loc"])])
    return f"{place}: {detail['msg'].removeprefix('Value error, ')}"


def _milliseconds(began: float) -> int:
    return round((perf_counter() - began) * 1000)
