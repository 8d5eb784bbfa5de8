"""Jobs of all kinds run in a storm of kills, stops, crashes and partitions; afterwards every promise is kept.

`make test` has a short one; `make chaos SECONDS=120 SEED=1` has one as long as you like.
"""

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from plans import FAULTS, make_plan
from processes import Stage
from storm import ROLES, run_storm

from dagmaster.store.embedded import EmbeddedServer
from dagmaster.store.migrate import upgrade

SHORT_SECONDS, SHORT_JOBS = 12.0, 54
LONG_JOBS, JOBS_PER_SECOND = 300, 2.5
SECONDS = float(os.environ.get("CHAOS_SECONDS") or SHORT_SECONDS)
IS_SHORT = not os.environ.get("CHAOS_SECONDS")

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(SECONDS + 900)]


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    """A separate server, because it is restarted."""
    folder = Path(tempfile.mkdtemp(prefix="dagmaster-test-"))
    with EmbeddedServer.start(folder) as server:
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            conn.execute("ALTER SYSTEM SET fsync = off")  # The server crashes, never the machine.
            conn.execute("ALTER SYSTEM SET track_commit_timestamp = on")
        server.restart(immediate=False)
        upgrade(server.dsn)
        yield server
    shutil.rmtree(folder)


def test_every_guarantee_holds_in_a_storm(server: EmbeddedServer, tmp_path: Path) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(2**32))
    jobs = SHORT_JOBS if IS_SHORT else max(LONG_JOBS, round(SECONDS * JOBS_PER_SECOND))
    plan = make_plan(seed, seconds=SECONDS, jobs=jobs, roles=ROLES)
    storm = run_storm(Stage(server.dsn, tmp_path, forgetful=False, is_real=True), server, plan)
    assert {kind.name for kind in FAULTS} <= set(storm.done)
