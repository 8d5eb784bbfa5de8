"""The context that a route passes to the service: its connection and the caller."""

from typing import Annotated, Final

from fastapi import Depends

from dagmaster.service.context import ServiceContext
from dagmaster.web.access import Admitted
from dagmaster.web.services import Conn, ServicesDep

WAIT_SECONDS: Final = 3.0


async def service_context(services: ServicesDep, conn: Conn, caller: Admitted) -> ServiceContext:
    return ServiceContext(
        conn,
        services.settings,
        source_app="api",
        actor=caller.name or None,
        wait_seconds=WAIT_SECONDS,
        wake=services.wake,
        find_fleet=services.fleet,
        notifies=services.orchestrator is None and services.notifier.can_piggyback(),
    )


Context = Annotated[ServiceContext, Depends(service_context, scope="function")]
