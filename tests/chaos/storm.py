"""The storm: real processes behind proxies, faults, and final checks."""

import heapq
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import storm_handlers
from checks import (
    assert_all_are_there,
    assert_all_slots_are_free,
    assert_doctor_finds_nothing,
    assert_nobody_crashed,
    assert_nobody_is_left_behind,
)
from database_proxies import Proxies, Proxy
from persistent_client import PersistentClient
from plans import LEASE_SECONDS, Fault, Plan, PlannedJob
from postgres_crashes import crash, crash_in_recovery
from processes import BOTH, ORCHESTRATOR, WORKER, Process, Stage
from promise import assert_promise_kept
from storm_workflows import KINDS

from dagmaster.store.embedded import EmbeddedServer

STORM_HANDLERS = ("--handlers", storm_handlers.__file__)
COMMANDS = (ORCHESTRATOR, ORCHESTRATOR, (*BOTH, *STORM_HANDLERS), *[(*WORKER, *STORM_HANDLERS)] * 3)
ROLES = tuple(command[0] for command in COMMANDS)
CONCURRENCY = 8
SLOTS = CONCURRENCY * sum(command != ORCHESTRATOR for command in COMMANDS)
SETTINGS: dict[str, Any] = {
    "orphan_threshold_seconds": LEASE_SECONDS,
    "worker_lost_after_seconds": LEASE_SECONDS,
    "worker_concurrency": CONCURRENCY,
    "timeout_grace_seconds": 1,
}
SLOW_SECONDS = 0.05
CALM_SECONDS = 180.0
MEETING_SECONDS = 60.0
TICK_SECONDS = 0.02
LIVE = "SELECT count(*) AS live FROM dagapp.dag_jobs WHERE status IN ('pending', 'running')"
PAUSED = "SELECT job_id FROM dagapp.dag_jobs WHERE paused_at IS NOT NULL AND status IN ('pending', 'running')"
KNOWN = """
    SELECT count(*) FROM (SELECT pid FROM dagapp.dag_orchestrators UNION ALL SELECT pid FROM dagapp.dag_workers) known
    WHERE pid = %s
"""
SEEN = """
    SELECT 'jobs ' || status AS what, count(*) AS times FROM dagapp.dag_jobs GROUP BY 1
    UNION ALL SELECT 'workers ' || status, count(*) FROM dagapp.dag_workers GROUP BY 1
    UNION ALL SELECT 'executions', count(*) FROM acceptance_ledger WHERE event = 'start'
    UNION ALL SELECT event_type::text, count(*) FROM dagapp.dag_job_events
    WHERE event_type IN ('job_taken_over', 'job_paused', 'node_retrying', 'result_ignored') GROUP BY 1
"""


@dataclass
class Place:
    """A slot for one process of a role at a time. It is empty between a kill and the next start."""

    command: tuple[str, ...]
    proxy: Proxy
    process: Process | None = None


class Storm:
    def __init__(self, stage: Stage, server: EmbeddedServer, proxies: Proxies, plan: Plan) -> None:
        self.stage, self.server, self.plan = stage, server, plan
        self.places = [Place(command, proxies.add()) for command in COMMANDS]
        self.client = PersistentClient(stage.dsn, f"storm-{plan.seed}")
        self.done: Counter[str] = Counter()
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()

    def run(self) -> None:
        """Run the whole plan, then wait until everything is at rest."""
        for place in self.places:
            self._start(place)
        self._await_everybody()
        for job in self.plan.jobs:
            self._at(job.at, partial(self._submit, job))
        for fault in self.plan.faults:
            self._at(fault.at, partial(self._strike, fault))
        began = time.monotonic()
        while self._agenda:
            at, _, act = self._agenda[0]
            if (wait := began + at - time.monotonic()) > 0:
                self._supervise()
                time.sleep(min(wait, TICK_SECONDS))
                continue
            heapq.heappop(self._agenda)
            act()
        self._rest()

    def check(self) -> None:
        """Every job exists, every slot is free, every guarantee holds, and the doctor finds nothing."""
        assert_all_are_there(self.stage, self.plan.jobs, self.client.job_ids)
        assert_all_slots_are_free(self.stage, SLOTS, seconds=MEETING_SECONDS)
        cancelled = self.client.cancelled
        assert_promise_kept(self.stage.dsn, shapes=KINDS, killed=None, cancelled=cancelled, may_repeat=True)
        assert_doctor_finds_nothing(self.stage)

    def summary(self) -> str:
        seen = {row["what"]: row["times"] for row in self.stage.database.rows(SEEN)}
        return f"storm of {self.plan.seconds:g} s, seed {self.plan.seed}: {dict(self.done)}, {seen}"

    # The schedule.

    def _at(self, seconds: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._agenda, (seconds, next(self._numbers), act))

    def _submit(self, job: PlannedJob) -> None:
        job_id = self.client.submit(job)
        if job.cancel_at is not None:
            self._at(job.cancel_at, partial(self.client.cancel, job_id))
        if job.pause_at is not None and job.resume_at is not None:
            self._at(job.pause_at, partial(self.client.pause, job_id))
            self._at(job.resume_at, partial(self.client.resume, job_id))

    def _strike(self, fault: Fault) -> None:
        self.done[fault.kind.name] += 1
        if fault.place is not None:
            self._hit(self._target(self.places[fault.place]), fault.kind.name, fault.at + fault.seconds)
        elif fault.kind.name == "crash":
            crash(self.server)
        elif fault.kind.name == "crash_in_recovery":
            self.done["crashed while recovering"] += crash_in_recovery(self.server)
        elif fault.kind.name == "reset_all":
            for place in self.places:
                place.proxy.reset()

    def _target(self, planned: Place) -> Place:
        """Another process of the same role if none runs in this place."""
        same = [place for place in self.places if place.command[0] == planned.command[0] and place.process]
        return planned if planned.process or not same else same[0]

    def _hit(self, place: Place, fault: str, end: float) -> None:
        process, proxy = place.process, place.proxy
        match fault:
            case "kill" if process is not None:
                process.kill()
                place.process = None
                self._at(end, partial(self._start, place))
            case "stop" if process is not None:
                process.stop()
                self._at(end, process.go_on)
            case "partition":
                proxy.silence()
                self._at(end, proxy.open)
            case "withhold":
                proxy.withhold()
                self._at(end, proxy.open)
            case "refuse":
                proxy.shut()
                self._at(end, proxy.open)
            case "slow":
                proxy.slow_down(SLOW_SECONDS)
                self._at(end, proxy.open)
            case "reset":
                proxy.reset()

    # Processes.

    def _start(self, place: Place) -> None:
        place.process = self.stage.start(*place.command, **SETTINGS, database_url=place.proxy.dsn)

    def _supervise(self) -> None:
        """Restart processes that cannot reach the database at their start; later, none may end by itself."""
        for place in self.places:
            if place.process is None or not place.process.has_ended():
                continue
            code = place.process.popen.returncode
            assert code >= 0 and not self._is_known(place.process), f"it died:\n{place.process.last_words()}"
            self.done["starts in vain"] += 1
            place.process.should_live = False
            self._start(place)

    def _is_known(self, process: Process) -> bool:
        return bool(self.stage.database.value(KNOWN, process.pid))

    def _await_everybody(self) -> None:
        deadline = time.monotonic() + CALM_SECONDS
        for place in self.places:
            while place.process is None or not self._is_known(place.process):
                self._supervise()
                assert time.monotonic() < deadline, f"it does not start: {place}"
                time.sleep(TICK_SECONDS)

    def _rest(self) -> None:
        """All processes run and can be reached until all jobs have ended."""
        for place in self.places:
            place.proxy.open()
        self._await_everybody()
        deadline = time.monotonic() + CALM_SECONDS
        while self.stage.database.value(LIVE):
            self._supervise()
            for row in self.stage.database.rows(PAUSED):
                self.client.resume(row["job_id"])
            assert time.monotonic() < deadline, f"these do not end: {self.stage.summary()}"
            time.sleep(TICK_SECONDS)


def run_storm(stage: Stage, server: EmbeddedServer, plan: Plan) -> Storm:
    """One storm and its checks. Failures include the seed and the last output of the processes."""
    sys.stderr.write(f"CHAOS_SEED={plan.seed}\n")
    with Proxies(stage.dsn) as proxies:
        storm = Storm(stage, server, proxies, plan)
        try:
            storm.run()
            storm.check()
            sys.stderr.write(f"{storm.summary()}\n")
        except BaseException as error:
            error.add_note(f"CHAOS_SEED={plan.seed} gives the same storm again, as far as time allows")
            sys.stderr.write(f"{storm.summary()}\n{stage.close()}\n")
            raise
        stage.close()
    assert_nobody_crashed(stage.processes)
    assert_nobody_is_left_behind(stage.dsn)
    return storm
