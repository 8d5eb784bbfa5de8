"""A worker with a round trip to the database above half a second works."""

import pytest
from database_proxies import Proxies
from processes import ORCHESTRATOR, WORKER, Stage
from shapes import CHAIN

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

WAY_SECONDS = 0.3


def test_a_worker_works_with_a_round_trip_above_half_a_second(stage: Stage) -> None:
    with Proxies(stage.dsn) as proxies:
        proxy = proxies.add()
        stage.launch(ORCHESTRATOR)
        stage.launch(WORKER, database_url=proxy.dsn)
        proxy.slow_down(WAY_SECONDS)
        job_id = stage.submit(CHAIN, n=1)
        stage.until("SELECT count(*) > 0 FROM acceptance_ledger WHERE event = 'end' AND job_id = %s", job_id)
