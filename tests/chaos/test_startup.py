"""A process that loses the database during its start continues to start."""

import psycopg
import pytest
from database_proxies import Proxies
from processes import BOTH, Stage
from promise import assert_promise_kept
from shapes import CHAIN

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

# It is registered then, and looks for orphaned jobs.
IS_ADOPTING = """
    SELECT count(*) > 0 FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'dagmaster orchestrator' AND wait_event = 'relation'
"""


def test_an_orchestrator_whose_connection_is_reset_at_start_runs_its_jobs(stage: Stage) -> None:
    with Proxies(stage.dsn) as proxies:
        proxy = proxies.add()
        with psycopg.connect(stage.dsn) as conn:
            conn.execute("LOCK TABLE dagapp.dag_jobs IN ACCESS EXCLUSIVE MODE")
            both = stage.start(*BOTH, database_url=proxy.dsn)
            stage.until(IS_ADOPTING)
            proxy.reset()
        stage.await_role(both)
        stage.submit(CHAIN, n=1)
        stage.until_ended()
        assert not both.has_ended()
        assert_promise_kept(stage.dsn)
