"""The page of a node in a browser, with its log."""

from collections.abc import Callable, Iterator

import pytest
from browsing import Site, Visit, accessibility_findings
from job_site import HOLD, job_site
from playwright.sync_api import Page, expect

SCRIPT = "<script>document.title = 'taken over'</script>"
LINES = ".log-lines > div"
# The first responses end early: the one with the existing lines in an error, the following one normally.
# Shortens the delay after which the page reads again.
INTERRUPTED = """
    const later = setTimeout;
    window.setTimeout = (act, delay, ...rest) => later(act, delay / 20, ...rest);
    const ask = fetch;
    const parts = ["line 1\\nli"];
    const bytes = (text) => new TextEncoder().encode(text);
    const broken = { pull: (to) => parts.length ? to.enqueue(bytes(parts.pop())) : to.error(new TypeError("gone")) };
    const ends = { "tail=": () => new ReadableStream(broken, { highWaterMark: 0 }), "follow=": () => "" };
    window.fetch = async (address, ...rest) => {
      const found = Object.keys(ends).find((one) => String(address).includes(one));
      if (!found) return ask(address, ...rest);
      const body = ends[found]();
      delete ends[found];
      return new Response(body, { headers: { "X-Log-Size": "60" } });
    };
"""


@pytest.fixture(scope="module")
def site(shared_dsn: str) -> Iterator[Site]:
    with job_site(shared_dsn) as site:
        yield site


@pytest.fixture(autouse=True)
def hold() -> Iterator[None]:
    HOLD.keep()
    yield
    HOLD.let_go()


def test_a_log_grows_while_it_is_shown(site: Site, page: Page) -> None:
    job_id = site.submit("chatty")
    page.goto(f"/ui/jobs/{job_id}/nodes/talk")
    expect(page.locator(LINES)).to_have_count(3)
    expect(page.locator(".log-state")).to_have_text("live")
    HOLD.let_go()
    expect(page.locator(LINES)).to_have_count(4)
    expect(page.locator(LINES).last).to_contain_text("the last word")
    expect(page.locator(LINES).last).not_to_contain_text("[31m")
    expect(page.locator("#node-head .badge").first).to_have_text("completed")
    expect(page.locator(".log-state")).to_have_text("")


def test_an_overwritten_line_is_shown_as_on_a_terminal(site: Site, page: Page) -> None:
    job_id = site.submit("chatty", lines=1, bar=["10 %", "20 %", "30 %"])
    page.goto(f"/ui/jobs/{job_id}/nodes/talk")
    expect(page.locator(LINES).last).to_have_text("30 %")
    HOLD.let_go()
    expect(page.locator(LINES).last).to_contain_text("the last word")


def test_a_log_is_complete_after_an_interrupted_read(site: Site, visit: Callable[..., Visit]) -> None:
    job_id = site.submit("chatty")
    page = visit(is_alone=True).page
    page.add_init_script(INTERRUPTED)
    page.goto(f"/ui/jobs/{job_id}/nodes/talk")
    expect(page.locator(LINES)).to_have_count(3)
    HOLD.let_go()
    expect(page.locator(LINES)).to_have_count(4)
    expect(page.locator(LINES).last).to_contain_text("the last word")
    expect(page.locator(".log-state")).to_have_text("")


def test_a_scrolled_log_keeps_its_position(site: Site, page: Page) -> None:
    job_id = site.submit("chatty", lines=400)
    page.goto(f"/ui/jobs/{job_id}/nodes/talk")
    expect(page.locator(LINES)).to_have_count(400)
    expect(page.get_by_role("button", name="Jump to end")).to_be_hidden()
    page.locator(".log-lines").evaluate("box => { box.scrollTop = 0 }")
    expect(page.get_by_role("button", name="Jump to end")).to_be_visible()
    HOLD.let_go()
    expect(page.locator(LINES)).to_have_count(401)
    assert page.locator(".log-lines").evaluate("box => box.scrollTop") == 0
    page.get_by_role("button", name="Jump to end").click()
    expect(page.get_by_role("button", name="Jump to end")).to_be_hidden()


def test_a_log_can_be_searched(site: Site, page: Page) -> None:
    HOLD.let_go()
    job_id = site.run("chatty", lines=120)
    page.goto(f"/ui/jobs/{job_id}/nodes/talk")
    expect(page.locator(LINES)).to_have_count(121)
    find = page.get_by_label("Find in log")
    find.fill("LINE 11")
    expect(page.locator(".log-count")).to_have_text("11 of 11")
    find.press("Enter")
    expect(page.locator(".log-count")).to_have_text("1 of 11")
    expect(page.locator(f"{LINES}.current")).to_contain_text("line 11")
    page.get_by_role("button", name="Previous match").click()
    expect(page.locator(f"{LINES}.current")).to_contain_text("line 119")
    find.fill("no such thing")
    expect(page.locator(".log-count")).to_have_text("not found")


def test_the_end_of_a_huge_log_is_shown_and_the_rest_is_offered(site: Site, page: Page) -> None:
    HOLD.let_go()
    job_id = site.run("chatty", lines=12_000)
    page.goto(f"/ui/jobs/{job_id}/nodes/talk")
    expect(page.locator(LINES)).to_have_count(5000)
    expect(page.locator(LINES).last).to_contain_text("the last word")
    expect(page.locator(".log-note")).to_contain_text("Showing the last 5,000 lines")
    page.get_by_label("Find in log").fill("line 4321")
    expect(page.locator(".log-earlier summary")).to_have_text("1 match in earlier lines")
    expect(page.locator(".log-count")).to_have_text("only in earlier lines")
    expect(page.locator(".log-earlier li")).to_contain_text("line 4321")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.path().read_text().count("\n") == 12_001


def test_every_attempt_shows_its_error_and_can_be_retried(site: Site, visit: Callable[..., Visit]) -> None:
    seen = visit()
    page = seen.page
    job_id = site.run("stumble", failures=2)
    page.goto(f"/ui/jobs/{job_id}/nodes/step")
    expect(page.get_by_label("Why it failed")).to_contain_text("failed in attempt 1")
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.get_by_label("Why it failed")).to_contain_text("failed in attempt 2")
    expect(page.get_by_label("Error of attempt 1")).to_contain_text("failed in attempt 1")
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.locator("#node-head .badge").first).to_have_text("completed")
    expect(page.locator("#attempt-3")).to_contain_text("completed")
    expect(page.locator("#output")).to_contain_text("retry_count")
    seen.forgive("404")  # The log of an attempt that ended without output, if it was requested just then.


def test_an_approval_can_be_rejected_on_the_node_page(site: Site, page: Page) -> None:
    job_id = site.submit("release")
    page.goto(f"/ui/jobs/{job_id}/nodes/ask")
    approval = page.get_by_label("Approval ask")
    approval.get_by_role("button", name="Reject").click()
    page.get_by_label("Reason").fill("not today")
    page.locator("#confirm-yes").click()
    expect(page.locator("#node-head .badge").first).to_have_text("failed")
    expect(page.get_by_label("Why it failed")).to_contain_text("not today")


def test_a_waiting_node_shows_what_it_waits_for(site: Site, visit: Callable[..., Visit]) -> None:
    seen = visit()
    page = seen.page
    job_id = site.submit("held")
    site.until(job_id, "running")
    page.goto(f"/ui/jobs/{job_id}/nodes/second")
    expect(page.locator("#node-head .why")).to_contain_text("first")
    HOLD.let_go()
    expect(page.locator("#node-head .badge").first).to_have_text("completed")
    seen.forgive("404")  # The log of the attempt, which ended without output, if it was requested just then.


def test_logs_and_outputs_are_escaped(site: Site, page: Page) -> None:
    job_id = site.run("hostile", text=SCRIPT)
    page.goto(f"/ui/jobs/{job_id}/nodes/say")
    expect(page.locator(LINES).first).to_contain_text(SCRIPT)
    page.goto(f"/ui/jobs/{job_id}/nodes/give")
    expect(page.locator("#output")).to_contain_text(SCRIPT)
    expect(page).not_to_have_title("taken over")


def test_an_unknown_node_is_a_page_with_a_link_back(site: Site, visit: Callable[..., Visit]) -> None:
    job_id = site.run("stumble", failures=0)
    visited = visit()
    visited.page.goto(f"/ui/jobs/{job_id}/nodes/nowhere")
    expect(visited.page.get_by_text("has no node 'nowhere'")).to_be_visible()
    visited.forgive("404")


def test_a_phone_scrolls_no_page_sideways(site: Site, visit: Callable[..., Visit]) -> None:
    job_id = site.run("hostile", text="a_very_long_word_" * 20)
    page = visit(viewport={"width": 390, "height": 844}).page
    for node in ("say", "break", "give"):
        page.goto(f"/ui/jobs/{job_id}/nodes/{node}")
        expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_node_page_is_accessible(site: Site, page: Page) -> None:
    HOLD.let_go()
    failed, talked = site.run("stumble"), site.run("chatty")
    for address in (f"{failed}/nodes/step", f"{talked}/nodes/talk"):
        page.goto(f"/ui/jobs/{address}")
        expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
        assert accessibility_findings(page) == []
