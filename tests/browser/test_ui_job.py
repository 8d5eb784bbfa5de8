"""The page of a job in a browser."""

import re
from collections.abc import Callable, Iterator

import pytest
from browsing import Site, Visit, accessibility_findings
from job_site import HOLD, job_site
from playwright.sync_api import Locator, Page, expect

SCRIPT = "<script>document.title = 'taken over'</script>"


@pytest.fixture(scope="module")
def site(shared_dsn: str) -> Iterator[Site]:
    with job_site(shared_dsn) as site:
        yield site


@pytest.fixture(autouse=True)
def hold() -> Iterator[None]:
    HOLD.keep()
    yield
    HOLD.let_go()


def test_a_job_updates_to_its_end_without_a_reload(site: Site, page: Page) -> None:
    job_id = site.submit("held")
    page.goto(f"/ui/jobs/{job_id}")
    page.evaluate("window.isSame = true")
    expect(page.locator("#node-first")).to_contain_text("running")
    expect(page.locator("#job-head .why")).to_contain_text("first")
    HOLD.let_go()
    expect(page.locator("#job-head .badge").first).to_have_text("completed")
    expect(page.locator("#node-second")).to_contain_text("completed")
    expect(page.locator("#job-head .why")).to_have_count(0)
    assert page.evaluate("window.isSame")


def test_a_failed_job_shows_why_and_can_be_retried(site: Site, page: Page) -> None:
    job_id = site.run("stumble")
    page.goto(f"/ui/jobs/{job_id}")
    why = page.get_by_label("Why it failed")
    expect(why).to_contain_text("flaky_echo failed in attempt 1")
    expect(why.get_by_role("link", name="Read log")).to_have_attribute("href", f"/ui/jobs/{job_id}/nodes/step#log")
    why.get_by_role("button", name="Retry step").click()
    expect(page.locator("#job-head .badge").first).to_have_text("completed")
    expect(why).to_have_count(0)
    expect(page.locator("#node-step [data-label=Attempts]")).to_contain_text("2")


def test_an_ended_jobs_page_is_idle_and_notices_a_retry_by_others(site: Site, page: Page) -> None:
    job_id = site.run("stumble")
    answers: list[int] = []
    path = f"/ui/jobs/{job_id}"
    page.on("response", lambda response: answers.append(response.status) if response.url.endswith(path) else None)
    page.goto(f"/ui/jobs/{job_id}")
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    with page.expect_response(lambda response: response.status == 304):
        site.submit("held")
    assert answers.count(200) == 1
    site.client.post(f"/api/v1/jobs/{job_id}/retry").raise_for_status()
    expect(page.locator("#job-head .badge").first).to_have_text("completed")
    expect(page.locator('.gnode[data-node="step"]')).to_have_attribute("data-status", "completed")


def test_a_job_can_be_cancelled_with_a_reason_after_confirmation(site: Site, page: Page) -> None:
    job_id = site.submit("held")
    page.goto(f"/ui/jobs/{job_id}")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Close").click()
    assert site.job(job_id)["status"] in ("pending", "running")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_label("Reason").fill("wrong numbers")
    page.get_by_role("button", name="Cancel job").click()
    expect(page.locator("#job-head .badge").first).to_have_text("cancelled")
    page.goto(f"/ui/jobs/{job_id}?tab=timeline")
    expect(page.locator(".events")).to_contain_text("wrong numbers")


def test_a_job_can_be_paused_and_resumed(site: Site, page: Page) -> None:
    job_id = site.submit("held")
    page.goto(f"/ui/jobs/{job_id}")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#job-head .badge").first).to_have_text("paused")
    expect(page.locator("#job-head .why")).to_contain_text("paused")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#job-head .badge").first).to_have_text("running")
    HOLD.let_go()
    expect(page.locator("#job-head .badge").first).to_have_text("completed")


def test_an_approval_and_a_signal_can_be_sent_from_the_page(site: Site, page: Page) -> None:
    job_id = site.submit("release", name="version 2")
    page.goto(f"/ui/jobs/{job_id}")
    approval = page.get_by_label("Approval ask")
    expect(approval).to_contain_text("Ship version 2?")
    approval.get_by_role("button", name="Approve").click()
    page.get_by_label("Reason").fill("looks good")
    page.locator("#confirm-yes").click()
    expect(approval).to_have_count(0)
    signal = page.get_by_label("Signal tests_done")
    signal.get_by_role("textbox").fill('{"passed": 212}')
    signal.get_by_role("button", name="Send").click()
    expect(page.locator("#job-head .badge").first).to_have_text("completed")
    job = site.job(job_id)
    assert job["result_data"]["ask"]["comment"] == "looks good"
    assert job["result_data"]["ship"]["echoed_params"] == {"passed": 212}


def test_text_typed_for_a_signal_survives_a_refresh(site: Site, page: Page) -> None:
    job_id = site.submit("release")
    site.until(job_id, "running")
    page.goto(f"/ui/jobs/{job_id}")
    page.get_by_label("Approval ask").get_by_role("button", name="Approve").click()
    page.locator("#confirm-yes").click()
    box = page.get_by_label("Signal tests_done").get_by_role("textbox")
    box.fill('{"passed": ')
    page.get_by_role("button", name="Refresh").click()
    page.get_by_text("Command line").click()
    expect(box).to_have_value('{"passed": ')
    site.client.post(f"/api/v1/jobs/{job_id}/cancel").raise_for_status()
    expect(box).to_have_count(0)
    expect(page.locator(".commands")).to_have_attribute("open", "")


def test_the_chart_has_a_bar_for_every_attempt_and_a_strip_for_a_fan_out(site: Site, page: Page) -> None:
    job_id = site.run("persist")
    page.goto(f"/ui/jobs/{job_id}?tab=gantt")
    step = page.locator("a.gantt-row", has_text="step")
    expect(step.locator("rect.ran")).to_have_count(3)
    expect(step.locator("path.mark.is-failed")).to_have_count(2)
    expect(step).to_have_attribute("aria-label", re.compile("attempt 1 failed.*attempt 3 completed"))
    spread = page.locator("a.gantt-row", has_text="spread")
    expect(spread.locator("rect.part")).not_to_have_count(0)
    page.get_by_text("View as table").click()
    expect(page.locator("#bar-step-2")).to_contain_text("failed")
    expect(page.locator("#bar-step-3")).to_contain_text("completed")


def test_the_chart_can_be_zoomed_and_scrolled_by_keys(site: Site, page: Page) -> None:
    job_id = site.run("persist")
    page.goto(f"/ui/jobs/{job_id}?tab=gantt")
    bar = page.locator("a.gantt-row", has_text="step").locator("rect.ran").first
    expect(bar).to_be_visible()
    before = width_of(bar)
    page.locator("a.gantt-row").first.focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("a.gantt-row", has_text="step")).to_be_focused()
    for _ in range(3):
        page.keyboard.press("+")
    assert width_of(bar) > 4 * before
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{site.url}/ui/jobs/{job_id}/nodes/step")


def width_of(bar: Locator) -> float:
    box = bar.bounding_box()
    assert box is not None
    return box["width"]


def test_the_chart_of_a_running_job_advances(site: Site, page: Page) -> None:
    job_id = site.submit("held")
    page.goto(f"/ui/jobs/{job_id}?tab=gantt")
    expect(page.locator(".gantt-now")).to_have_count(1)
    expect(page.locator("a.gantt-row[data-status=running] rect.ran.is-running")).to_have_count(1)
    HOLD.let_go()
    expect(page.locator("a.gantt-row[data-status=completed]", has_text="END")).to_have_count(1)
    expect(page.locator(".gantt-now")).to_have_count(0)


def test_children_of_a_fan_out_can_be_collapsed_and_expanded(site: Site, page: Page) -> None:
    job_id = site.run("persist")
    page.goto(f"/ui/jobs/{job_id}")
    expect(page.locator("tbody tr")).to_have_count(5)
    expect(page.locator("#node-spread")).to_contain_text("5/5")
    page.locator("#node-spread .fold").click()
    expect(page).to_have_url(re.compile("parent=spread"))
    expect(page.locator("tbody tr")).to_have_count(5)
    expect(page.locator("#node-spread__4")).to_contain_text("completed")


def test_nodes_are_filtered_by_status_and_text(site: Site, page: Page) -> None:
    job_id = site.run("stumble")
    page.goto(f"/ui/jobs/{job_id}")
    page.locator("#nodes select[name=status]").select_option("failed")
    page.wait_for_url("**?status=failed")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.goto(f"/ui/jobs/{job_id}?text=attempt 1")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.goto(f"/ui/jobs/{job_id}?text=nothing")
    expect(page.get_by_text("No matching nodes")).to_be_visible()


def test_the_timeline_describes_events_and_keeps_its_filters_in_the_url(site: Site, page: Page) -> None:
    job_id = site.run("stumble")
    page.goto(f"/ui/jobs/{job_id}/timeline")
    expect(page.locator(".events > li").first).to_contain_text("the job has failed")
    page.locator("select[name=order]").select_option("oldest")
    page.wait_for_url("**order=oldest")
    expect(page.locator(".events > li").first).to_contain_text("submitted")
    page.locator("select[name=type]").select_option("node_failed")
    page.wait_for_url("**type=node_failed**")
    expect(page.locator(".events > li")).to_have_count(1)
    page.goto(f"/ui/jobs/{job_id}?tab=timeline&node=step")
    expect(page.locator(".events > li")).not_to_have_count(0)
    expect(page.locator(".events").get_by_role("link", name="END")).to_have_count(0)


def test_inputs_and_result_can_be_copied_as_json(site: Site, page: Page) -> None:
    job_id = site.run("stumble", failures=0)
    page.goto(f"/ui/jobs/{job_id}?tab=data")
    page.locator("#inputs").get_by_role("button", name="Copy as JSON").click()
    expect(page.locator("#toasts")).to_contain_text("Copied")
    assert '"failures": 0' in page.evaluate("navigator.clipboard.readText()")
    expect(page.locator("#result")).to_contain_text("step")


def test_a_fan_out_over_tiles_is_shown_on_the_map(site: Site, visit: Callable[..., Visit]) -> None:
    job_id = site.submit("tiles")
    page = visit(viewport={"width": 390, "height": 844}, reduced_motion="reduce").page
    page.goto(f"/ui/jobs/{job_id}?tab=data")
    legend = page.get_by_role("list", name="Tiles by state")
    expect(legend.locator("li")).to_have_text(["1 completed", "1 running", "2 ready"])
    expect(page.locator(".map-tile")).to_have_count(4)
    expect(page.locator(".map-tile.is-ready")).to_have_count(2)
    box = page.locator(".map-tile.is-running").bounding_box()
    assert box and box["x"] + box["width"] <= 390 and page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("button", name="Zoom in").click()
    moved = page.locator(".map-canvas svg > g").first
    looked_at = moved.get_attribute("transform") or ""
    HOLD.let_go()
    expect(legend.locator("li")).to_have_text(["1 completed", "1 failed", "2 skipped", "tiles__1"])
    expect(page.locator(".map-tile.is-failed")).to_have_count(1)
    expect(moved).to_have_attribute("transform", looked_at)
    assert accessibility_findings(page) == []
    site.client.post(f"/api/v1/jobs/{job_id}/retry", json={"bbox": [9, 51, 10, 51.5]}).raise_for_status()
    expect(legend.locator("li")).to_have_text(["2 completed", "2 skipped"])
    page.locator(".map-tile.is-skipped").first.click()
    expect(page).to_have_url(f"{site.url}/ui/jobs/{job_id}/nodes/tiles__2")


def test_related_runs_link_to_each_other(site: Site, page: Page) -> None:
    first, second = site.run("stumble", failures=0), site.run("stumble", failures=0)
    page.goto(f"/ui/jobs/{first}?tab=related")
    expect(page.locator(f"#run-{first}")).to_contain_text("this job")
    page.locator(f"#run-{second}").get_by_role("link", name=second).click()
    expect(page).to_have_url(f"{site.url}/ui/jobs/{second}")


def test_an_unknown_job_is_a_page_with_a_link_back(visit: Callable[..., Visit]) -> None:
    visited = visit()
    visited.page.goto("/ui/jobs/12345")
    expect(visited.page.get_by_text("there is no job 12345")).to_be_visible()
    expect(visited.page.get_by_role("button", name="Back")).to_be_visible()
    visited.forgive("404")


def test_user_text_is_escaped(site: Site, page: Page) -> None:
    job_id = site.run("hostile", text=SCRIPT)
    for address in ("", "?tab=gantt", "?tab=timeline", "?tab=data", "?tab=related", "/timeline", "/nodes/break"):
        page.goto(f"/ui/jobs/{job_id}{address}")
        expect(page).not_to_have_title("taken over")
    page.goto(f"/ui/jobs/{job_id}")
    expect(page.get_by_label("Why it failed")).to_contain_text(SCRIPT)
    page.goto(f"/ui/jobs/{job_id}?tab=data")
    expect(page.locator("#inputs")).to_contain_text(SCRIPT)


@pytest.mark.parametrize("address", ["", "?tab=gantt", "?tab=timeline", "?tab=data", "?tab=related", "/timeline"])
def test_a_phone_scrolls_no_page_sideways(site: Site, visit: Callable[..., Visit], address: str) -> None:
    job_id = site.run("hostile", text="a_very_long_word_" * 20)
    page = visit(viewport={"width": 390, "height": 844}).page
    page.goto(f"/ui/jobs/{job_id}{address}")
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_names_of_maximum_length_fit_on_every_page(site: Site, visit: Callable[..., Visit]) -> None:
    workflow, node = (
        "a_workflow_with_a_name_as_long_as_it_may_be_reproject_all_tiles",
        "a_node_with_a_name_as_long_as_it",
    )
    job = f"jobs/{site.run(workflow)}"
    pages = (
        "",
        "jobs",
        "nodes",
        "tasks",
        "queues",
        "workflows",
        f"workflows/{workflow}",
        f"submit?workflow={workflow}",
    )
    page = visit(viewport={"width": 1440, "height": 900}).page
    for address in (*pages, job, f"{job}/nodes/{node}_may_be_reproj12"):
        page.goto(f"/ui/{address}")
        for width in (1440, 360):
            page.set_viewport_size({"width": width, "height": 780})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (address, width)


def test_a_fan_outs_duration_covers_its_children_in_graph_and_table(site: Site, page: Page) -> None:
    HOLD.keep()
    job_id = site.submit("spreads")
    page.goto(f"/ui/jobs/{job_id}")
    expect(page.locator("#node-each .badge").first).to_have_text("running")
    listed = page.locator("#job-nodes tbody tr").evaluate_all("rows => rows.map(row => row.id)")
    assert listed == ["node-START", "node-each", "node-gather", "node-again", "node-END"]  # As in the graph.
    page.goto(f"/ui/jobs/{job_id}/nodes/each")
    expect(page.locator("#node-head .badge").first).to_have_text("running")
    HOLD.let_go()
    expect(page.locator("#node-head .badge").first).to_have_text("completed")


def test_job_pages_are_accessible(site: Site, page: Page) -> None:
    failed, waiting = site.run("stumble"), site.submit("release")
    site.until(waiting, "running")
    tabs = ("gantt", "timeline", "data", "related")  # The graph has tests of its own.
    for address in [*(f"{failed}?tab={tab}" for tab in tabs), f"{waiting}?tab=related"]:
        page.goto(f"/ui/jobs/{address}")
        expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
        assert accessibility_findings(page) == []
