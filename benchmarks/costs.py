"""Which process has used how much of a processor: the measured ones, and the server's for each of their connections."""

from collections.abc import Mapping
from contextlib import suppress

from benchmarks.fleet import Role, cpu_seconds
from dagmaster.store.connect import Connection

BACKENDS = "SELECT pid, application_name FROM pg_stat_activity WHERE datname = current_database()"


async def read_costs(conn: Connection, roles: Mapping[str, Role]) -> dict[str, float]:
    """Seconds of processor time so far, by who used them."""
    costs = {name: role.cpu_seconds for name, role in roles.items()}
    for row in await (await conn.execute(BACKENDS)).fetchall():
        name = f"PostgreSQL for {row['application_name'].removeprefix('dagmaster ')}"
        with suppress(OSError):  # it has ended since
            costs[name] = costs.get(name, 0.0) + cpu_seconds(row["pid"])
    return costs


def spent(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
