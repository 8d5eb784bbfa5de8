"""Everybody is killed at random, again and again, while jobs of every shape are submitted and run."""

import os
import random
import sys
import time

import pytest
from processes import BOTH, ORCHESTRATOR, WORKER, Process, Stage
from promise import assert_promise_kept
from shapes import CHAIN, DOOMED, FAN, FLAKY, FORK, NARROW_FAN

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

ROLES = (ORCHESTRATOR, BOTH, WORKER, WORKER)
STORM_SECONDS = 8.0
EVERY_SECONDS = 0.3
JOBS = 40
SEED = "ACCEPTANCE_SEED"  # give the printed one to have the same kills again, as far as time allows
READY = """
    SELECT pid FROM dagapp.dag_orchestrators WHERE status = 'running'
    UNION SELECT pid FROM dagapp.dag_workers WHERE status = 'active'
"""


def test_nothing_is_lost_or_doubled_in_a_storm_of_kills(stage: Stage) -> None:
    seed = int(os.environ.get(SEED) or random.SystemRandom().randrange(2**32))
    sys.stderr.write(f"{SEED}={seed}\n")
    rng = random.Random(seed)
    kinds = [
        lambda: (CHAIN, {"n": rng.randrange(100)}),
        lambda: (FORK, {"weight": rng.randrange(20)}),
        lambda: (FAN, {"items": [rng.randrange(100) for _ in range(rng.randrange(30))]}),
        lambda: (NARROW_FAN, {"items": [rng.randrange(100) for _ in range(rng.randrange(20))]}),
        lambda: (FLAKY, {}),
        lambda: (DOOMED, {}),
    ]
    jobs = [kinds[number % len(kinds)]() for number in range(JOBS)]
    alive = stage.launch(*ROLES)
    stage.submit_all(jobs[: JOBS // 2])
    rest = jobs[JOBS // 2 :]
    end = time.monotonic() + STORM_SECONDS
    while (left := end - time.monotonic()) > 0:
        time.sleep(EVERY_SECONDS * rng.uniform(0.5, 1.5))
        replace_one(stage, alive, rng)
        if rest and len(rest) > left / STORM_SECONDS * JOBS // 2:
            stage.submit_all([rest.pop()])
    stage.submit_all(rest)
    for process in alive:
        stage.await_role(process)
    stage.until_ended(seconds=150)
    assert_promise_kept(stage.dsn, killed=stage.killed)


def replace_one(stage: Stage, alive: list[Process], rng: random.Random) -> None:
    """Kill one of those that are at work, and start another in its place."""
    ready = {row["pid"] for row in stage.database.rows(READY)}
    at_work = [place for place, process in enumerate(alive) if process.pid in ready]
    if not at_work:
        return
    place = rng.choice(at_work)
    stage.kill(alive[place])
    alive[place] = stage.start(*alive[place].arguments)
