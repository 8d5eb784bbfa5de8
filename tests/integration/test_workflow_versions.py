"""A job's definition is pinned by content, whatever its version number."""

from fleet import fleet, single


async def test_changed_content_under_the_same_version_is_logged(dsn: str) -> None:
    async with fleet(dsn) as running:
        first = await running.submit(single("echo", params={"a": 1}))
        second = await running.submit(single("echo", params={"a": 2}))
        assert await running.events(first, "job_warning") == []
        [warning] = await running.events(second, "job_warning")
        assert warning["event_status"] == "warning"
