"""Random worlds of assets with concurrent users and jobs, and the proof that they detect bugs."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from typing import Any

import psycopg
import pytest
from asset_intents import Anything, Delete, Intent, Quarrel, Sensible, resolve
from asset_invariants import Violation
from asset_model import Decide, MoveJob, ProcessAgain, Publish, Submit
from asset_worlds import AT_ONCE, GATES, Site, connections
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from dagmaster.assets import exposure, layers, processing, review
from dagmaster.model.asset import Asset, ClearanceState
from dagmaster.service import asset_submission, asset_transaction, assets
from dagmaster.service.asset_contract import Approve, DeleteVersion, Reject, Reprocess
from dagmaster.store import assets as asset_store
from dagmaster.store.assets import AssetChange, AssetRow
from dagmaster.store.connect import Connection
from dagmaster.store.statements import SQL, Statement, fetch

# `DAGMASTER_ASSET_WORLDS=500` searches more worlds, new ones each time; by default every run repeats the same ones.
WORLDS = int(os.environ.get("DAGMASTER_ASSET_WORLDS", "0"))
SEARCH = settings(
    max_examples=WORLDS or 8,
    stateful_step_count=40,
    derandomize=not WORLDS,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
NAMES = count()

Patch = Callable[[pytest.MonkeyPatch, str], None]
Scenario = Callable[[Site], Awaitable[None]]
BUGS: dict[str, tuple[Patch, Scenario | None]] = {}


picks = st.integers(0, 119)  # In such a small range, all values are equally likely.
assets_by_use = st.sampled_from(["a", "a", "a", "a", "b"])
ages = st.sampled_from([0, 0, 0, 1])
sensible = st.builds(Sensible, picks, assets_by_use)
intents = st.one_of(sensible, sensible, st.builds(Anything, picks, assets_by_use), st.builds(Quarrel, picks, age=ages))
gates = st.sampled_from(list(GATES))


class AssetWorld(RuleBasedStateMachine):
    """Each rule runs a round and then checks the invariants."""

    def __init__(self, runner: asyncio.Runner, conns: Sequence[Connection]) -> None:
        super().__init__()
        self.runner, self.site = runner, Site.of(conns, f"world-{next(NAMES)}")

    def play(self, *intents: Intent, gate: str = "none") -> None:
        operations = [resolve(self.site.world, intent) for intent in intents]
        self.runner.run(self.site.round(*operations, gate=gate if len(operations) > 1 else "none"))

    def submit(self, ending: str) -> None:
        """Submit a version with this processing outcome, unless another one is unresolved."""
        [submitted] = self.runner.run(self.site.round(Submit("a")))
        if submitted.job_id is not None:
            for status in ("running", ending):
                self.runner.run(self.site.round(MoveJob(submitted.job_id, status)))

    @initialize(levels=st.lists(st.sampled_from(list(ClearanceState)[1:]), max_size=2), is_published=st.booleans())
    def begin(self, levels: list[ClearanceState], is_published: bool) -> None:
        """Start with some approved versions."""
        for ordinal, level in enumerate(levels):
            self.submit("completed")
            self.runner.run(self.site.round(Decide("a", Approve(ordinal, level))))
        if is_published:
            self.runner.run(self.site.round(Publish("a")))

    @rule(ending=st.sampled_from(["completed", "completed", "failed"]))
    def process(self, ending: str) -> None:
        self.submit(ending)

    @rule(intent=intents)
    def act(self, intent: Intent) -> None:
        self.play(intent)

    @rule(intents=st.lists(intents, min_size=2, max_size=AT_ONCE), gate=gates)
    def act_at_once(self, intents: list[Intent], gate: str) -> None:
        self.play(*intents, gate=gate)

    @rule(picks=st.lists(picks, min_size=2, max_size=AT_ONCE), age=ages, gate=gates)
    def quarrel(self, picks: list[int], age: int, gate: str) -> None:
        self.play(*(Quarrel(pick, age=age) for pick in picks), gate=gate)

    @rule(intents=st.lists(intents, min_size=1, max_size=AT_ONCE - 1), gate=gates)
    def delete_the_other_asset(self, intents: list[Intent], gate: str) -> None:
        self.play(Delete("b"), *intents, gate=gate)


def search(dsn: str, options: settings) -> None:
    """Raises the smallest failure that Hypothesis finds."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            conns = runner.run(stack.enter_async_context(connections(dsn)))
            run_state_machine_as_test(lambda: AssetWorld(runner, conns), settings=options)  # type: ignore[arg-type]
        finally:
            runner.run(stack.aclose())


@pytest.mark.timeout(900)  # Only a failure takes long, because it is shrunk.
def test_concurrent_operations_are_linearizable(shared_dsn: str) -> None:
    search(shared_dsn, SEARCH)


# Scenarios force conflicts that random worlds meet only by luck.


async def submit_and_run(site: Site, ending: str, *, resubmit: bool = False) -> int:
    [submitted] = await site.round(Submit("a", resubmit=resubmit))
    assert submitted.job_id is not None
    for status in ("running", ending):
        await site.round(MoveJob(submitted.job_id, status))
    return submitted.job_id


async def add_two_versions(site: Site) -> None:
    """The first is approved, the second waits for review."""
    await submit_and_run(site, "completed")
    await site.round(Decide("a", Approve(0, ClearanceState.OUO)))
    await submit_and_run(site, "completed")


async def approve_one_version_while_another_is_deleted(site: Site) -> None:
    await add_two_versions(site)
    await site.round(Decide("a", Approve(1)), Decide("a", DeleteVersion(0)), gate="assets")
    assert site.world.assets["a"].latest == 1


async def write_at_once_after_both_have_read(site: Site) -> None:
    await add_two_versions(site)
    await site.round(Decide("a", Approve(1)), Decide("a", DeleteVersion(0)), gate="versions")
    assert site.world.assets["a"].latest == 1


async def delete_the_only_approved_version(site: Site) -> None:
    await add_two_versions(site)
    await site.round(Decide("a", DeleteVersion(0)))
    assert site.world.assets["a"].latest is None


async def reopen_a_job_while_its_version_is_resubmitted(site: Site) -> None:
    job_id = await submit_and_run(site, "failed")
    again = ProcessAgain("a", Reprocess(0, resubmits=True))
    await site.round(MoveJob(job_id, "running"), again, gate="versions")


async def end_a_job_whose_version_has_another(site: Site) -> None:
    [first] = await site.round(Submit("a"))
    assert first.job_id is not None
    await site.round(MoveJob(first.job_id, "running"))
    await site.round(Decide("a", Reject("blurred")))
    await site.round(Submit("a", resubmit=True))
    await site.round(MoveJob(first.job_id, "completed"))
    assert site.world.assets["a"].versions[0].processing == "processing"


async def delete_a_version_that_is_being_processed(site: Site) -> None:
    [submitted] = await site.round(Submit("a"))
    assert submitted.job_id is not None
    await site.round(MoveJob(submitted.job_id, "running"))
    await site.round(Decide("a", DeleteVersion(0)))


async def reopen_a_failed_job(site: Site) -> None:
    job_id = await submit_and_run(site, "failed")
    await site.round(MoveJob(job_id, "running"))


async def approve_the_next_version_of_a_published_layer(site: Site) -> None:
    await add_two_versions(site)
    await site.round(Publish("a"))
    await site.round(Decide("a", Approve(1)))


SCENARIOS = [
    approve_the_next_version_of_a_published_layer,
    delete_a_version_that_is_being_processed,
    reopen_a_failed_job,
    approve_one_version_while_another_is_deleted,
    write_at_once_after_both_have_read,
    delete_the_only_approved_version,
    reopen_a_job_while_its_version_is_resubmitted,
    end_a_job_whose_version_has_another,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_a_scenario_holds(shared_dsn: str, scenario: Scenario) -> None:
    async with connections(shared_dsn) as conns:
        await scenario(Site.of(conns, scenario.__name__))


# Bugs that such a system could have.


def bug(scenario: Scenario | None = None) -> Callable[[Patch], Patch]:
    """Register a bug that the scenario, or otherwise the search, detects."""

    def register(patch: Patch) -> Patch:
        BUGS[patch.__name__] = (patch, scenario)
        return patch

    return register


def change_statement(patch: pytest.MonkeyPatch, name: str, pattern: str, replacement: str) -> None:
    statement = SQL[name]
    changed, count = re.subn(pattern, replacement, statement.text.decode())
    assert count, f"{name} has no {pattern}"
    patch.setitem(SQL, name, Statement(changed.encode(), statement.names))


def change_function(dsn: str, name: str, pattern: str, replacement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute("SELECT pg_get_functiondef(%s::regproc)", [f"dagapp.{name}"]).fetchone()
        assert row is not None
        changed, count = re.subn(pattern, replacement, row[0])
        assert count, f"{name} has no {pattern}"
        conn.execute(changed)


@bug()
def two_versions_may_be_unresolved(patch: pytest.MonkeyPatch, dsn: str) -> None:
    change_statement(patch, "add_version", r"ON CONFLICT \(asset_id\)[^$]*DO NOTHING", "")
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("DROP INDEX dagapp.uq_asset_versions_unresolved")


@bug(reopen_a_job_while_its_version_is_resubmitted)
def the_optimistic_check_is_left_out(patch: pytest.MonkeyPatch, dsn: str) -> None:
    change_statement(patch, "save_asset_change", r"AND v\.version = (\$\d+)", r"AND \1::int IS NOT NULL")


@bug(end_a_job_whose_version_has_another)
def a_stale_job_moves_the_version(patch: pytest.MonkeyPatch, dsn: str) -> None:
    change_function(dsn, "follow_job", r"AND v\.current_job_id = NEW\.job_id", "")


@bug()
def a_request_does_not_follow_its_job(patch: pytest.MonkeyPatch, dsn: str) -> None:
    change_function(dsn, "follow_job", r"WHERE job_id = NEW\.job_id;", "WHERE false;")


@bug(reopen_a_failed_job)
def a_reopened_job_leaves_its_version_failed(patch: pytest.MonkeyPatch, dsn: str) -> None:
    change_function(dsn, "follow_job", r"WHEN NEW\.status = 'running' THEN 'failed'", "WHEN false THEN 'failed'")


@bug(delete_the_only_approved_version)
def the_latest_is_any_version(patch: pytest.MonkeyPatch, dsn: str) -> None:
    change_statement(patch, "approved_ordinals", "AND approval_state = 'approved'", "")


@bug(write_at_once_after_both_have_read)
def nobody_waits_for_the_asset(patch: pytest.MonkeyPatch, dsn: str) -> None:
    change_statement(patch, "lock_asset", "FOR NO KEY UPDATE", "")


@bug(approve_one_version_while_another_is_deleted)
def the_approved_versions_are_read_before_the_lock(patch: pytest.MonkeyPatch, dsn: str) -> None:
    locked = asset_store.lock_asset

    async def lock_asset(conn: Connection, asset_id: str) -> Asset:
        rows = await fetch(conn, "approved_ordinals", {"asset_id": asset_id})
        return replace(await locked(conn, asset_id), approved=tuple(row["version_ordinal"] for row in rows))

    for module in (asset_submission, asset_transaction, assets):
        patch.setattr(module, "lock_asset", lock_asset)


@bug(delete_the_only_approved_version)
def the_public_sees_what_is_not_cleared(patch: pytest.MonkeyPatch, dsn: str) -> None:
    def check_asset(asset: AssetRow, audience: exposure.Audience) -> None:
        """Ignores the clearance."""

    patch.setattr(exposure, "check_asset", check_asset)


@bug(delete_the_only_approved_version)
def clearance_is_not_recorded(patch: pytest.MonkeyPatch, dsn: str) -> None:
    cleared = review.clear

    def clear(*args: Any) -> AssetChange:
        return replace(cleared(*args), events=())

    patch.setattr(review, "clear", clear)


@bug(end_a_job_whose_version_has_another)
def a_revision_is_not_counted(patch: pytest.MonkeyPatch, dsn: str) -> None:
    restarted = processing._restarted
    patch.setattr(processing, "_restarted", lambda version, job_id: restarted(replace(version, revision=0), job_id))


@bug(approve_the_next_version_of_a_published_layer)
def a_published_layer_stays_as_it_was(patch: pytest.MonkeyPatch, dsn: str) -> None:
    async def refresh(*args: Any, **options: Any) -> None:
        """Does nothing."""

    patch.setattr(layers, "refresh", refresh)


@bug(delete_a_version_that_is_being_processed)
def the_jobs_of_a_deleted_version_go_on(patch: pytest.MonkeyPatch, dsn: str) -> None:
    deleted = review.delete_version

    def delete_version(*args: Any) -> AssetChange:
        return replace(deleted(*args), cancelled_job_ids=())

    patch.setattr(review, "delete_version", delete_version)


@pytest.mark.parametrize("name", [name for name, (_, scenario) in BUGS.items() if scenario is not None])
async def test_a_scenario_detects_the_bug(dsn: str, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    patch, scenario = BUGS[name]
    assert scenario is not None
    patch(monkeypatch, dsn)
    with pytest.raises(Violation):
        async with connections(dsn) as conns:
            await scenario(Site.of(conns, name))


@pytest.mark.parametrize("name", [name for name, (_, scenario) in BUGS.items() if scenario is None])
def test_the_search_detects_the_bug(dsn: str, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    patch, _ = BUGS[name]
    patch(monkeypatch, dsn)
    with pytest.raises((Violation, FlakyFailure)):  # A race may not recur in the last, shrunk run.
        search(dsn, settings(SEARCH, phases=[Phase.generate]))
