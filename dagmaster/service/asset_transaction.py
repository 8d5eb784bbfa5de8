"""One transaction on one asset: lock it, read the version, write the change, notify the orchestrators."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from dagmaster.assets import review
from dagmaster.errors import IdempotencyConflict, UnknownVersion
from dagmaster.ids import JobId
from dagmaster.model.asset import Asset, AssetVersion
from dagmaster.service.context import ServiceContext
from dagmaster.service.submission import add_job
from dagmaster.store.asset_versions import find_version
from dagmaster.store.assets import AssetChange, StaleVersion, lock_asset, save_change
from dagmaster.store.connect import Connection
from dagmaster.store.submission import NewJob

ATTEMPTS: Final = 5

Result = TypeVar("Result")


async def transact(context: ServiceContext, attempt: Callable[[], Awaitable[Result]]) -> Result:
    """All or nothing; retried if a job has moved the version between read and write."""
    for remaining in reversed(range(ATTEMPTS)):
        try:
            async with context.conn.transaction():
                result = await attempt()
        except StaleVersion:
            if not remaining:
                raise
            continue
        context.wake()
        return result
    raise AssertionError("the last attempt raises or returns")


async def lock_version(conn: Connection, asset_id: str, ordinal: int | None) -> tuple[Asset, AssetVersion]:
    asset = await lock_asset(conn, asset_id)
    return asset, await get_version(conn, asset, ordinal)


async def get_version(conn: Connection, asset: Asset, ordinal: int | None) -> AssetVersion:
    review.check_live(asset)
    version = await find_version(conn, asset.asset_id, ordinal)
    if version is None:
        which = f"version {ordinal}" if ordinal is not None else "version that waits for review"
        raise UnknownVersion(f"asset {asset.asset_id!r} has no {which}")
    return version


async def save(conn: Connection, asset: Asset, change: AssetChange, version: AssetVersion | None) -> None:
    if not (change.asset or change.version or change.events):
        return
    if version is None or not change.version:
        await save_change(conn, asset, change)
    else:
        await save_change(conn, asset, change, ordinal=version.version_ordinal, known_version=version.version)


async def store_job(context: ServiceContext, job: NewJob) -> JobId:
    """Raises IdempotencyConflict for a key that belongs to another job."""
    submitted = await add_job(context, job)
    if not submitted.is_new:
        raise IdempotencyConflict(
            f"idempotency key {job.idempotency_key!r} belongs to job {submitted.job_id}; use a new key"
        )
    return submitted.job_id
