"""Schedules in a browser."""

from collections.abc import Callable

from browsing import Site, Visit
from playwright.sync_api import Locator, Page, expect


def _row(site: Site, page: Page) -> Locator:
    site.client.post("/api/v1/schedules/sync").raise_for_status()
    page.goto("/ui/schedules")
    return page.locator("#schedule-yearly")


def test_a_schedule_shows_its_next_run(site: Site, page: Page) -> None:
    row = _row(site, page)
    expect(row).to_contain_text("30 4 1 1 * (Europe/Berlin)")
    expect(row.locator(".times li")).to_have_count(3)
    expect(row.locator(".times li").first).to_contain_text("-01-01 04:30 CET")
    expect(row).to_contain_text("missed runs are skipped")


def test_a_schedule_can_be_paused_and_resumed(site: Site, page: Page) -> None:
    row = _row(site, page)
    row.get_by_role("button", name="Pause").click()
    expect(row).to_contain_text("none while paused")
    page.goto("/ui/schedules?state=active")
    expect(row).to_have_count(0)
    page.goto("/ui/schedules?state=paused")
    row.get_by_role("button", name="Resume").click()
    expect(row).to_have_count(0)
    assert site.client.get("/api/v1/schedules/yearly").json()["paused_at"] is None


def test_a_schedule_can_be_triggered_and_its_job_is_linked(site: Site, page: Page) -> None:
    row = _row(site, page)
    row.get_by_role("button", name="Run now").click()
    page.locator("#confirm-yes").click()
    expect(page.locator("#toasts")).to_contain_text("Started a job of yearly")
    expect(row.locator("td[data-label='Last run']")).to_contain_text("completed")
    row.get_by_role("link", name="all jobs").click()
    page.wait_for_url("**/ui/jobs?schedule=yearly")
    expect(page.locator("tbody tr").first).to_contain_text("yearly")
    page.get_by_label("schedule yearly", exact=True).click(force=True)
    page.wait_for_url("**/ui/jobs")


def test_a_backfill_shows_the_number_of_jobs_before_it_starts_them(site: Site, page: Page) -> None:
    row = _row(site, page)
    row.get_by_role("button", name="Backfill").click()
    dialog = page.get_by_role("dialog", name="Backfill yearly")
    expect(dialog).to_contain_text("Europe/Berlin")
    expect(dialog.get_by_role("button", name="Start")).to_be_disabled()
    dialog.get_by_label("From").fill("2022-06-01T00:00")
    dialog.get_by_label("To (exclusive)").fill("2025-06-01T00:00")
    expect(dialog).to_contain_text("This starts 3 jobs.")
    dialog.get_by_role("button", name="Start 3 jobs").click()
    expect(page.locator("#toasts")).to_contain_text("Started 3 jobs")
    expect(dialog).to_be_hidden()
    row.get_by_role("button", name="Backfill").click()
    dialog.get_by_label("From").fill("2022-06-01T00:00")
    dialog.get_by_label("To (exclusive)").fill("2024-06-01T00:00")
    expect(dialog).to_contain_text("No jobs to start in this range. 2 of 2 times already have a job.")
    dialog.get_by_role("button", name="Close").click()


def test_an_invalid_range_is_refused(site: Site, visit: Callable[..., Visit]) -> None:
    visited = visit()
    _row(site, visited.page).get_by_role("button", name="Backfill").click()
    dialog = visited.page.get_by_role("dialog", name="Backfill yearly")
    dialog.get_by_label("From").fill("2025-06-01T00:00")
    dialog.get_by_label("To (exclusive)").fill("2022-06-01T00:00")
    expect(dialog).to_contain_text("must start after 1970, and end after its start")
    expect(dialog.get_by_role("button", name="Start")).to_be_disabled()
    visited.forgive("422")
