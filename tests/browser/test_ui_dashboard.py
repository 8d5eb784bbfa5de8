"""The dashboard in a browser: from the first job to the tenth failure."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from browsing import Site, Visit
from playwright.sync_api import Page, expect
from serving import server

SCRIPT = "<script>document.title = 'taken over'</script>"
GREET = """
workflow_id: greet
name: Greet
nodes:
  START: {type: start, next: say}
  say: {type: task, handler: echo, next: END}
  END: {type: end}
"""
FAILS = """
workflow_id: fails
name: Fails
inputs: {message: {type: string}}
nodes:
  START: {type: start, next: work}
  work: {type: task, handler: fail, params: {message: "{{ inputs.message }}"}, retry: {max_attempts: 0}, next: END}
  END: {type: end}
"""
ASKS = """
workflow_id: asks
name: Asks
nodes:
  START: {type: start, next: decide}
  decide: {type: approval, message: Publish the new tiles?, next: END}
  END: {type: end}
"""


@pytest.fixture(scope="module")
def site(shared_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder: Path = tmp_path_factory.mktemp("workflows")
    for name, text in {"greet": GREET, "fails": FAILS, "asks": ASKS}.items():
        (folder / f"{name}.yaml").write_text(text)
    with server(shared_dsn, folder) as running, closing(Site(running, shared_dsn)) as site:
        yield site


@pytest.fixture(autouse=True)
def forget_failures(site: Site) -> None:
    """Remove the failures of other tests."""
    site.execute("UPDATE dagapp.dag_jobs SET completed_at = now() - interval '2 days' WHERE completed_at IS NOT NULL")


def test_the_first_page_explains_how_to_start_and_then_becomes_the_dashboard(site: Site, page: Page) -> None:
    site.execute("DELETE FROM dagapp.dag_jobs")  # Processes that share the tests may run them in another order.
    page.goto("/ui/")
    expect(page.get_by_role("heading", name="No jobs have run yet")).to_be_visible()
    page.locator(".command", has_text="dagmaster submit").get_by_role("button").click()
    expect(page.locator(".toast")).to_contain_text("dagmaster submit")
    site.run("greet")
    page.goto("/ui/")
    expect(page.locator("#attention")).to_contain_text("All good")


def test_a_failure_shows_why_and_can_be_retried(site: Site, page: Page) -> None:
    job_id = site.run("fails", message=SCRIPT)
    page.goto("/ui/")
    need = page.locator(".need", has_text="fails failed")
    expect(need).to_contain_text(SCRIPT)
    expect(page).to_have_title("Dashboard · dagmaster")
    expect(need.get_by_role("link", name="Details")).to_have_attribute("href", f"/ui/jobs/{job_id}")
    need.get_by_role("button", name="Retry").click()
    expect(page.locator(".toast").first).to_contain_text("Retrying")
    site.until(job_id, "failed")


def test_identical_failures_are_grouped(site: Site, page: Page) -> None:
    for number in range(3):
        site.run("fails", message=f"no file {number}")
    page.goto("/ui/")
    need = page.locator(".need", has_text="fails: 3 jobs failed with the same error")
    site.run("fails", message="no such bucket")
    need.get_by_role("link", name="All").click()
    page.wait_for_url("**/ui/jobs?status=failed&workflow=fails&period=ended-24h&text=*")
    expect(page.locator("tbody tr")).to_have_count(3)


def test_the_dashboard_updates_without_a_reload(site: Site, page: Page) -> None:
    page.goto("/ui/")
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    expect(page.locator("#tile-failed b")).to_have_text("0")
    job_id = site.run("fails", message="now")
    expect(page.locator(f"#job-{job_id}")).to_contain_text("failed")
    expect(page.locator("#tile-failed b")).to_have_text("1")
    expect(page.locator("#attention")).to_contain_text("node work failed: now")


def test_an_approval_links_to_its_decision(site: Site, page: Page) -> None:
    job_id = site.submit("asks")
    page.goto("/ui/")
    need = page.locator("#need-approvals")
    expect(need).to_contain_text("Publish the new tiles?")
    expect(need.get_by_role("link", name="Decide")).to_have_attribute("href", "/ui/approvals")
    site.client.post(f"/api/v1/jobs/{job_id}/nodes/decide/approve", json={}).raise_for_status()
    expect(need).to_have_count(0)


def test_tiles_link_to_the_jobs_that_they_count(site: Site, page: Page) -> None:
    long_ago, lately = site.run("fails", message="x"), site.run("fails", message="y")
    moved = "UPDATE dagapp.dag_jobs SET created_at = created_at - interval '3 days' WHERE job_id = %s"
    site.execute(moved, int(lately))  # A job that has run for days.
    site.execute("UPDATE dagapp.dag_jobs SET completed_at = now() - interval '3 days' WHERE job_id = %s", int(long_ago))
    page.goto("/ui/")
    expect(page.locator("#tile-failed b")).to_have_text("1")
    page.locator("#tile-failed").click()
    page.wait_for_url("**/ui/jobs?status=failed&period=ended-24h")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator(f"#job-{lately}")).to_contain_text("failed")
    expect(page.locator("select[name=period]")).to_have_value("ended-24h")


def test_the_chart_shows_its_numbers_on_hover_and_in_a_table(site: Site, page: Page) -> None:
    site.run("greet")
    page.goto("/ui/")
    column = page.locator("#throughput .column", has=page.locator(".is-completed")).last
    column.hover(force=True)
    expect(page.locator(".tip")).to_have_text(
        re.compile(r"^[1-9]\d* completed, 0 failed, \d{4}-\d\d-\d\d \d\d:\d\d:00 UTC$")
    )
    page.locator("#throughput-table summary").click()
    expect(page.locator("#throughput-table tbody tr").last).to_be_visible()


def test_the_dashboard_fits_a_phone(site: Site, visit: Callable[..., Visit]) -> None:
    site.run("fails", message="a_name_without_any_place_to_break_" * 8)
    page = visit(viewport={"width": 360, "height": 740}).page
    page.goto("/ui/")
    expect(page.locator("#attention")).to_contain_text("fails failed")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
