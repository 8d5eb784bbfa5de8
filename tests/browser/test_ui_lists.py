"""Nodes, tasks, queues, workers, approvals and health in a browser."""

import re
from collections.abc import Callable

import pytest
from browsing import Site, Visit
from playwright.sync_api import Page, expect


@pytest.fixture(scope="module")
def failed(site: Site) -> str:
    return site.run("fails")


@pytest.fixture
def asking(site: Site) -> str:
    """A job that waits for a decision."""
    job_id = site.submit("asks", version="2.0")
    site.until(job_id, "running")
    return job_id


def test_a_failed_node_shows_why_and_can_be_retried(site: Site, page: Page) -> None:
    job_id = site.run("fails")
    page.goto("/ui/nodes?status=failed")
    row = page.locator(f"#node-{job_id}-say")
    expect(row).to_contain_text("the bridge is out")
    expect(row.get_by_role("link", name="say")).to_have_attribute("href", f"/ui/jobs/{job_id}/nodes/say")
    row.get_by_role("button", name="Retry").click()
    expect(page.locator("#toasts")).to_contain_text("Retrying say")
    site.until(job_id, "failed")
    events = site.client.get(f"/api/v1/jobs/{job_id}/timeline").text
    assert "job_reopened" in events


def test_nodes_can_be_filtered_and_the_url_keeps_the_filter(site: Site, page: Page, failed: str) -> None:
    done = site.run("greet")
    page.goto("/ui/nodes")
    page.locator("select[name=workflow]").select_option("greet")
    page.wait_for_url("**/ui/nodes?workflow=greet")
    expect(page.locator(f"#node-{done}-again")).to_contain_text("completed")
    expect(page.locator(f"#node-{failed}-say")).to_have_count(0)
    page.goto("/ui/nodes?text=nothing+like+it")
    expect(page.get_by_text("No matching nodes")).to_be_visible()


def test_running_tasks_are_shown_while_they_run(site: Site, page: Page) -> None:
    page.goto("/ui/tasks?state=running")
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    job_id = site.submit("naps")
    row = page.locator(f"#task-{job_id}_nap_0")
    expect(row).to_contain_text("sleep")
    worker = row.locator("td[data-label=Worker] a")
    worker.click()
    page.wait_for_url("**/ui/tasks?state=running&worker=*")
    expect(row).to_be_visible()
    site.client.post(f"/api/v1/jobs/{job_id}/cancel")
    expect(row).to_have_count(0)


def test_durations_are_drawn_and_available_as_a_table(site: Site, page: Page, failed: str) -> None:
    page.goto("/ui/tasks?handler=fail")
    expect(page.locator(f"#result-{failed}_say_0")).to_contain_text("failed")
    figure = page.get_by_role("figure")
    expect(figure).to_contain_text("p95")
    expect(figure.get_by_role("img")).to_have_attribute("aria-label", re.compile(r"\d+ attempts, \d+ failed"))
    figure.get_by_text("View as table").click()
    expect(figure.get_by_role("columnheader", name="Duration")).to_be_visible()
    expect(figure.locator("tbody tr").first).to_contain_text(" to ")


def test_a_queue_without_workers_shows_what_to_do(site: Site, page: Page, failed: str) -> None:
    page.goto("/ui/queues")
    expect(page.locator("#queue-q")).not_to_contain_text("none")
    site.execute(
        """INSERT INTO dagapp.dag_tasks_waiting (task_id, job_id, node_id, retry_count, queue, priority,
            job_started_at, handler, timeout_seconds, dispatched_at)
        VALUES ('stray', %s, 'stray', 0, 'gpu', 0, now(), 'render', 60, now())""",
        int(failed),
    )
    page.get_by_label("Refresh").click()
    expect(page.locator("#unclaimable-gpu-render")).to_contain_text("dagmaster worker --queues gpu")
    expect(page.locator("#queue-gpu")).to_contain_text("none")
    site.execute("DELETE FROM dagapp.dag_tasks_waiting WHERE task_id = 'stray'")


def test_a_worker_can_be_drained_and_resumed(site: Site, page: Page) -> None:
    page.goto("/ui/workers")
    row = page.locator("[id^=worker-]")
    expect(row).to_contain_text("active")
    expect(row.locator(".slots i")).to_have_count(8)
    row.get_by_role("button", name="Drain").click()
    expect(page.locator("#confirm")).to_contain_text("It claims no more tasks")
    page.locator("#confirm-yes").click()
    expect(row).to_contain_text("draining")
    row.get_by_role("button", name="Resume").click()
    expect(row).to_contain_text("active")
    row.locator("summary", has_text="handlers").click()
    expect(row.get_by_text("echo", exact=True)).to_be_visible()
    expect(page.locator("#orchestrators tbody tr")).to_have_count(1)


@pytest.mark.parametrize("path", ["/ui/handlers", "/ui/queues"])
def test_long_names_do_not_squeeze_other_columns(site: Site, visit: Callable[..., Visit], path: str) -> None:
    page = visit(viewport={"width": 1280, "height": 800}).page
    page.goto(path)
    table = page.locator(".card.flush").first
    expect(table).to_contain_text("a_workflow_with_a_long_identifier")
    assert table.evaluate("card => card.scrollWidth - card.clientWidth") <= 0
    for cell in page.locator("td.described").all():
        assert cell.evaluate("cell => cell.clientWidth") >= 280


def test_an_approval_can_be_given_with_a_comment(site: Site, page: Page, asking: str) -> None:
    page.goto("/ui/approvals")
    approval = page.locator(f"#approval-{asking}-ask")
    expect(approval).to_contain_text("Release 2.0?")
    approval.get_by_role("button", name="Approve").click()
    expect(page.locator("#confirm-text")).to_have_text("Release 2.0?")
    expect(page.locator("#confirm-yes")).to_have_class("button primary")
    page.locator("#confirm").get_by_label("Reason").fill("tested by hand")
    page.locator("#confirm-yes").click()
    expect(approval).to_have_count(0)
    expect(page.locator("#decided")).to_contain_text("tested by hand")
    site.until(asking, "completed")


def test_a_rejection_fails_the_job(site: Site, page: Page, asking: str) -> None:
    page.goto("/ui/approvals")
    page.locator(f"#approval-{asking}-ask").get_by_role("button", name="Reject").click()
    expect(page.locator("#confirm-yes")).to_have_class("button danger")
    page.locator("#confirm-yes").click()
    expect(page.locator(f"[id^=decided-{asking}-ask]")).to_contain_text("rejected")
    assert "rejected" in site.until(asking, "failed")["error_message"]


def test_an_approval_appears_without_a_reload(site: Site, page: Page) -> None:
    page.goto("/ui/approvals")
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    job_id = site.submit("asks")
    expect(page.locator(f"#approval-{job_id}-ask")).to_be_visible()
    site.client.post(f"/api/v1/jobs/{job_id}/cancel")
    expect(page.locator(f"#approval-{job_id}-ask")).to_have_count(0)


def test_health_shows_every_check_and_the_doctors_findings(site: Site, page: Page) -> None:
    page.goto("/ui/health")
    for name in ("database", "schema", "workers", "orchestrators"):
        expect(page.locator(f"#check-{name}")).to_contain_text("healthy")
    expect(page.locator("#doctor")).to_contain_text("xid age")
    page.get_by_role("button", name="Run again").click()
    expect(page.locator("#doctor")).to_contain_text("PostgreSQL")
    expect(page.locator("#tables")).to_contain_text("dag_jobs")


def test_rows_are_cards_on_a_phone(site: Site, visit: Callable[..., Visit], failed: str) -> None:
    page = visit(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True).page
    page.goto("/ui/nodes?status=failed")
    row = page.locator(f"#node-{failed}-say")
    expect(page.locator("thead")).to_be_hidden()
    row.get_by_role("button", name="Retry").scroll_into_view_if_needed()
    expect(row.get_by_role("button", name="Retry")).to_be_in_viewport(ratio=1)
    assert row.evaluate("one => getComputedStyle(one).display") == "grid"
    page.goto("/ui/jobs")
    check, badge = (page.locator(f"tbody {selector}").first.bounding_box() for selector in (".check input", ".badge"))
    assert check is not None and badge is not None
    assert check["x"] + check["width"] <= badge["x"]
