"""The list of jobs in a browser."""

import re
from collections.abc import Callable

from browsing import Site, Visit
from playwright.sync_api import Page, expect


def test_the_list_shows_a_job_and_links_to_it(site: Site, page: Page) -> None:
    job_id = site.run("greet")
    page.goto("/ui/jobs")
    row = page.locator(f"#job-{job_id}")
    expect(row).to_contain_text("completed")
    expect(row.get_by_role("link", name=job_id)).to_have_attribute("href", f"/ui/jobs/{job_id}")


def test_a_submitted_job_appears_without_a_reload(site: Site, page: Page) -> None:
    page.goto("/ui/jobs")
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    job_id = site.submit("greet")
    expect(page.locator(f"#job-{job_id}")).to_contain_text("completed")


def test_filters_are_in_the_url(site: Site, page: Page) -> None:
    job_id = site.run("greet")
    page.goto("/ui/jobs")
    page.get_by_label("failed").check(force=True)
    page.wait_for_url("**/ui/jobs?status=failed")
    expect(page.locator(f"#job-{job_id}")).to_have_count(0)
    page.goto(f"/ui/jobs?text={job_id}")
    expect(page.locator("tbody tr")).to_have_count(1)


def test_many_jobs_can_be_cancelled_after_confirming_their_number(site: Site, page: Page) -> None:
    jobs = [site.submit("naps") for _ in range(3)]
    for job_id in jobs:
        site.until(job_id, "running")
    page.goto("/ui/jobs?workflow=naps&status=running")
    for job_id in jobs[:2]:
        page.get_by_label(f"Select job {job_id}").check()
    bar = page.get_by_role("toolbar", name="Actions for selected jobs")
    expect(bar).to_contain_text("2 selected")
    bar.get_by_role("button", name="Cancel").click()
    dialog = page.locator("#confirm")
    expect(dialog).to_contain_text("Cancel 2 jobs?")
    dialog.get_by_label("Reason").fill("not needed")
    dialog.get_by_role("button", name="Cancel jobs").click()
    expect(page.locator("#toasts")).to_contain_text("Cancelled 2 jobs")
    for job_id in jobs[:2]:
        expect(page.locator(f"#job-{job_id}")).to_have_count(0)
        site.until(job_id, "cancelled")
    assert site.job(jobs[2])["status"] == "running"
    expect(bar).to_be_hidden()
    site.client.post(f"/api/v1/jobs/{jobs[2]}/cancel")


def test_a_signed_out_user_is_told_once(site: Site, visit: Callable[..., Visit]) -> None:
    seen = visit()
    page = seen.page
    jobs = [site.run("greet") for _ in range(3)]
    page.goto("/ui/jobs?workflow=greet")
    for job_id in jobs:
        page.get_by_label(f"Select job {job_id}").check()
    page.route("**/api/v1/jobs/*/cancel", lambda route: route.fulfill(status=401, body="{}"))
    page.locator("[data-bulk-action=cancel]").click()
    page.locator("#confirm-yes").click()
    expect(page.locator(".toast")).to_have_text(re.compile("You were signed out"))
    seen.forgive("401")


def test_dismissing_the_confirmation_changes_nothing(site: Site, page: Page) -> None:
    job_id = site.submit("naps")
    site.until(job_id, "running")
    page.goto("/ui/jobs?workflow=naps&status=running")
    page.get_by_label(f"Select job {job_id}").check()
    page.locator("[data-bulk-action=cancel]").click()
    page.get_by_role("button", name="Close").click()
    expect(page.locator("[data-bulk-count]")).to_have_text("1")
    assert site.job(job_id)["status"] == "running"
    page.get_by_label("Clear selection").click()
    expect(page.locator("[data-bulk]")).to_be_hidden()
    site.client.post(f"/api/v1/jobs/{job_id}/cancel")


def test_failed_jobs_can_be_retried_and_others_are_refused_with_the_reason(
    site: Site, visit: Callable[..., Visit]
) -> None:
    visited = visit()
    page = visited.page
    failed, done = site.run("fails"), site.run("greet")
    page.goto("/ui/jobs")
    for job_id in (failed, done):
        page.get_by_label(f"Select job {job_id}").check()
    page.locator("[data-bulk-action=retry]").click()
    expect(page.locator("#confirm")).to_contain_text("Retry the failed nodes of 2 jobs?")
    page.locator("#confirm-yes").click()
    expect(page.locator("#toasts")).to_contain_text("Retrying 1 job")
    expect(page.locator("#toasts")).to_contain_text(f"1 job not changed. job {done} is completed")
    expect(page.locator("[data-bulk-count]")).to_have_text("1")
    visited.forgive("409")


def test_a_list_filters_while_typing_and_the_field_keeps_the_focus(site: Site, page: Page) -> None:
    mine, other = site.run("greet", name="typed"), site.run("greet", name="not typed")
    page.goto("/ui/jobs")
    expect(page.locator(f"#job-{other}")).to_be_visible()
    page.evaluate("window.isSamePage = true")
    box = page.get_by_role("searchbox").first
    box.press_sequentially(mine, delay=5)
    expect(page.locator(f"#job-{other}")).to_have_count(0)
    expect(page.locator(f"#job-{mine}")).to_be_visible()
    expect(box).to_be_focused()
    expect(box).to_have_value(mine)
    expect(page).to_have_url(re.compile(f"text={mine}$"))
    box.press("Enter")
    expect(page.get_by_role("link", name="Clear")).to_be_visible()
    box.fill("")
    expect(page.locator(f"#job-{other}")).to_be_visible()
    assert page.evaluate("window.isSamePage"), "the page was loaded again"


def test_a_search_finds_errors_and_shows_them(site: Site, page: Page) -> None:
    failed = site.run("fails")
    page.goto("/ui/jobs")
    page.get_by_role("searchbox").fill("bridge is out")
    page.get_by_role("searchbox").press("Enter")
    page.wait_for_url("**/ui/jobs?text=bridge+is+out")
    expect(page.locator(f"#job-{failed} .error-line")).to_contain_text("the bridge is out")
    page.goto("/ui/jobs?text=nowhere+to+be+found")
    expect(page.get_by_text("No matching jobs")).to_be_visible()
    page.get_by_role("link", name="Show all jobs").click()
    expect(page.locator(f"#job-{failed}")).to_be_visible()


def test_a_time_range_excludes_older_jobs(site: Site, page: Page) -> None:
    old, new = site.run("greet"), site.run("greet")
    site.execute("UPDATE dagapp.dag_jobs SET created_at = now() - interval '2 days' WHERE job_id = %s", int(old))
    page.goto("/ui/jobs")
    page.locator("select[name=period]").select_option("24h")
    page.wait_for_url("**/ui/jobs?period=24h")
    expect(page.locator(f"#job-{new}")).to_be_visible()
    expect(page.locator(f"#job-{old}")).to_have_count(0)
    page.locator("select[name=workflow]").select_option("greet")
    page.wait_for_url("**/ui/jobs?workflow=greet&period=24h")
    page.go_back()
    expect(page.locator("select[name=workflow]")).to_have_value("")
    expect(page.locator("select[name=period]")).to_have_value("24h")
    page.goto("/ui/jobs?offset=5000")
    expect(page.locator("#jobs")).to_contain_text("No more jobs")
    page.goto("/ui/jobs?workflow=greet&period=7d")
    expect(page.locator(f"#job-{old}")).to_be_visible()


def test_older_jobs_are_on_the_next_page_with_the_same_filters(site: Site, page: Page) -> None:
    job_id = site.run("greet")
    site.execute(
        """INSERT INTO dagapp.dag_jobs (
            job_id, workflow_id, workflow_version, workflow_hash, status, priority, created_at
        )
        SELECT n, 'many', 1, workflow_hash, 'completed', 0, now() - make_interval(secs => n)
        FROM dagapp.dag_jobs CROSS JOIN generate_series(1, 60) n WHERE job_id = %s""",
        int(job_id),
    )
    page.goto("/ui/jobs?workflow=many&status=completed&status=failed")
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("link", name="Older").click()
    page.wait_for_url("**/ui/jobs?workflow=many&status=completed&status=failed&offset=50")
    expect(page.locator("tbody tr")).to_have_count(10)
    expect(page.locator(".paging")).to_contain_text("51 to 60")
    page.get_by_role("link", name="Newer").click()
    expect(page.locator("tbody tr")).to_have_count(50)
