"""The contracts that workers have registered, for commands that can do without."""

import typer

from dagmaster.cli.backend import backend_of
from dagmaster.errors import Misconfigured
from dagmaster.model.contracts import Contracts, by_spelling
from dagmaster.settings import Settings
from dagmaster.store.embedded import EmbeddedServer
from dagmaster.store.handlers import contract_of


def find_registered(ctx: typer.Context, settings: Settings, *, must_exist: bool) -> Contracts | None:
    """None where no database is configured and none runs in the data folder: it is not started for this."""
    is_configured = settings.url is not None or settings.database_dsn() is not None
    if not is_configured and not EmbeddedServer.is_running(settings.data_dir):
        if must_exist:
            raise Misconfigured(
                f"there are no registered contracts to check against: no database is configured, and none runs in "
                f"{settings.data_dir}; name one with --database-url or --url, or start `dagmaster dev`"
            )
        return None
    return by_spelling(map(contract_of, backend_of(ctx, settings).handlers()))
