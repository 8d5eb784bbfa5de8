"""Commands."""

from typing import Literal

from fastapi import APIRouter, Request

from dagmaster.schemas.system import CommandCall, CommandList, CommandReply
from dagmaster.web.access import OPERATORS, Admitted
from dagmaster.web.assets import Actor
from dagmaster.web.commands import COMMANDS, CommandContext, execute
from dagmaster.web.errors import documented
from dagmaster.web.services import Conn, ServicesDep

router = APIRouter(prefix="/api/v1/commands", tags=["system"])


@router.get("", dependencies=[OPERATORS])
async def list_commands() -> CommandList:
    """List the commands and their parameters."""
    return CommandList(commands=[command.summary() for command in COMMANDS.values()])


@router.post("/{name}", responses=documented(404, 409), dependencies=[OPERATORS])
async def run_command(
    name: str, caller: Admitted, request: Request, services: ServicesDep, conn: Conn, body: CommandCall | None = None
) -> CommandReply:
    """Run a command and return its result. Repeating a command is safe."""
    call = body or CommandCall()
    context = CommandContext(request.app, services, conn, call.actor or caller.name or None)
    return await execute(context, caller, name, call.params)


@router.post("/metadata/{verb}/{asset_id}", responses=documented(404, 409), dependencies=[OPERATORS])
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
    return await execute(context, caller, f"metadata.{verb}", {"asset_id": asset_id})
