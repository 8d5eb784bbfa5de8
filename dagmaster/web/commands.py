"""Commands: what an operator has done at once to the whole system, each with a trace in the audit."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from fastapi import FastAPI
from pydantic import ValidationError

from dagmaster import store
from dagmaster.errors import DagmasterError, Forbidden, Invalid, UnknownCommand
from dagmaster.model.access import Role
from dagmaster.model.redact import redact, redact_text
from dagmaster.schemas.common import Body, Json
from dagmaster.schemas.system import CommandReply, CommandSummary
from dagmaster.store.audit import note_command
from dagmaster.store.connect import Connection
from dagmaster.store.notifications import RELOAD
from dagmaster.store.schema import current_revision
from dagmaster.web.access import Caller, Keyring
from dagmaster.web.schedule_sync import sync_catalog
from dagmaster.web.services import Services


@dataclass(frozen=True, slots=True)
class CommandContext:
    """What a command works with."""

    app: FastAPI
    services: Services
    conn: Connection


class NoParams(Body):
    """The command takes none."""


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    description: str
    roles: frozenset[Role]
    params: type[Body]
    run: Callable[[CommandContext, Any], Awaitable[Json]]

    def summary(self) -> CommandSummary:
        return CommandSummary(
            name=self.name,
            description=self.description,
            roles=sorted(self.roles),
            params=self.params.model_json_schema(),
        )


async def migrate_schema(room: CommandContext, _: NoParams) -> Json:
    before = await current_revision(room.conn)
    await asyncio.to_thread(store.migrate.upgrade, room.services.dsn)
    after = await current_revision(room.conn)
    return {"before": before, "after": after, "is_changed": before != after}


async def invalidate_caches(room: CommandContext, _: NoParams) -> Json:
    room.services.catalog.reload()
    await sync_catalog(room.conn, room.services)
    room.app.state.keyring = Keyring(room.services.pool)
    catalog = room.services.catalog
    return {"workflows": len(catalog.workflows), "files_with_problems": len(catalog.problems)}


COMMANDS = {
    command.name: command
    for command in (
        Command(
            "schema.migrate",
            "Bring the database's schema to the version of this program.",
            frozenset({Role.ADMIN}),
            NoParams,
            migrate_schema,
        ),
        Command(
            "cache.invalidate",
            "Read the workflows anew, and forget which keys were looked up.",
            frozenset({Role.ADMIN, Role.OPERATOR}),
            NoParams,
            invalidate_caches,
        ),
    )
}


async def execute(room: CommandContext, caller: Caller, name: str, given: Json) -> CommandReply:
    """Validate, run, and leave one trace, whether it went well or not."""
    command = COMMANDS.get(name)
    if command is None:
        raise UnknownCommand(f"there is no command {name!r}; there are {', '.join(COMMANDS)}")
    if caller.role not in command.roles:
        raise Forbidden(
            f"a key of role {caller.role} may not run {name}; it takes {' or '.join(sorted(command.roles))}"
        )
    try:
        params = command.params.model_validate(given)
    except ValidationError as error:
        raise Invalid("; ".join(f"params.{one['loc'][0]}: {one['msg']}" for one in error.errors())) from error
    began = perf_counter()
    said = {"command": name, "actor": caller.name or None, "params": redact(given)}
    try:
        result = await command.run(room, params)
    except DagmasterError as error:
        text = redact_text(str(error))
        await note_command(room.conn, said, error=text, duration_ms=_milliseconds(began))
        raise
    duration_ms = _milliseconds(began)
    await note_command(room.conn, {**said, "result": redact(result)}, duration_ms=duration_ms)
    room.services.notifier.notify(RELOAD)
    return CommandReply(command=name, result=result, duration_ms=duration_ms)


def _milliseconds(began: float) -> int:
    return round((perf_counter() - began) * 1000)
