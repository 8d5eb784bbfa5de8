"""Assets in random worlds, where people and jobs act at once; and the proof that these worlds find bugs."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from asset_model import Decide, MoveJob, ProcessAgain, Submit
from asset_worlds import Site, Violation, connections, play

from dagmaster.assets import exposure, processing, review
from dagmaster.model.asset import Asset, ClearanceState
from dagmaster.service import asset_submission, asset_transaction, assets
from dagmaster.service.asset_contract import Approve, DeleteVersion, Reject, Reprocess
from dagmaster.store import assets as asset_store
from dagmaster.store.assets import AssetChange, AssetRow
from dagmaster.store.connect import Connection
from dagmaster.store.statements import SQL, Statement, fetch

ROUNDS = 50
MOST_SEEDS = 10

Patch = Callable[[pytest.MonkeyPatch, str], None]
Scenario = Callable[[Site], Awaitable[None]]
BUGS: dict[str, tuple[Patch, Scenario | None]] = {}


@pytest.mark.parametrize("seed", range(4))
async def test_every_round_is_explained_by_some_order_of_its_operations(shared_dsn: str, seed: int) -> None:
    await play(shared_dsn, seed, ROUNDS)


# Where a random world would have to be lucky, a scenario makes it certain that operations meet.


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


SCENARIOS = [
    delete_a_version_that_is_being_processed,
    reopen_a_failed_job,
    approve_one_version_while_another_is_deleted,
    write_at_once_after_both_have_read,
    delete_the_only_approved_version,
    reopen_a_job_while_its_version_is_resubmitted,
    end_a_job_whose_version_has_another,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_a_scenario(shared_dsn: str, scenario: Scenario) -> None:
    async with connections(shared_dsn) as conns:
        await scenario(Site.of(conns, scenario.__name__))


# Each of these is a bug that a system like this could have.


def bug(scenario: Scenario | None = None) -> Callable[[Patch], Patch]:
    """Found by the scenario, or else by random worlds."""

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
        """Whatever its clearance."""

    patch.setattr(exposure, "check_asset", check_asset)


@bug(delete_the_only_approved_version)
def clearance_is_not_recorded(patch: pytest.MonkeyPatch, dsn: str) -> None:
    cleared = review.clear

    def clear(*given: Any) -> AssetChange:
        return replace(cleared(*given), events=())

    patch.setattr(review, "clear", clear)


@bug(end_a_job_whose_version_has_another)
def a_revision_is_not_counted(patch: pytest.MonkeyPatch, dsn: str) -> None:
    restarted = processing._restarted
    patch.setattr(processing, "_restarted", lambda version, job_id: restarted(replace(version, revision=0), job_id))


@bug(delete_a_version_that_is_being_processed)
def the_jobs_of_a_deleted_version_go_on(patch: pytest.MonkeyPatch, dsn: str) -> None:
    deleted = review.delete_version

    def delete_version(*given: Any) -> AssetChange:
        return replace(deleted(*given), cancelled_job_ids=())

    patch.setattr(review, "delete_version", delete_version)


@pytest.mark.parametrize("name", BUGS)
async def test_it_is_found_that(dsn: str, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    patch, scenario = BUGS[name]
    patch(monkeypatch, dsn)
    with pytest.raises(Violation):
        if scenario is not None:
            async with connections(dsn) as conns:
                await scenario(Site.of(conns, name))
        else:
            for seed in range(MOST_SEEDS):
                await play(dsn, seed, ROUNDS)
