"""Common features of all pages: shortcuts, palette, themes, copying, and refreshing."""

import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from browsing import EMPTY_PAGE, THEMES, Site, Visit, accessibility_findings
from playwright.sync_api import Page, expect

LIVE = "#live-state"
WATCHED = 3_500
GAP = 1_500  # Between two requests of a page.
PATIENCE = 5  # A slow page waits longer: a multiple of the time that its slowest request took.
SLOWEST = """Math.max(...performance.getEntries()
    .filter((one) => one.entryType === "navigation" || one.initiatorType === "fetch")
    .map((one) => one.responseEnd - one.startTime))"""
POLL = 10_000  # Of a page without a websocket.
QUIET_TRIES = 20
LAST_EVENT = "SELECT coalesce(max(event_id), 0) FROM dagapp.dag_job_events"


def go(page: Page, path: str = "/ui/jobs") -> None:
    page.goto(path)
    expect(page.locator(LIVE)).to_have_attribute("data-state", "live")


# Shortcuts.


@pytest.mark.parametrize(("keys", "path"), [("gh", "/ui/"), ("gj", "/ui/jobs"), ("gw", "/ui/workflows")])
def test_two_keys_open_a_page(page: Page, keys: str, path: str) -> None:
    go(page, "/ui/submit")
    page.locator("body").press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.evaluate("Date.now = ((now) => () => now)(Date.now())")  # A busy machine may pause between two keys.
    for key in keys:
        page.keyboard.press(key)
    page.wait_for_url(f"**{path}")


def test_r_reloads_the_page(page: Page) -> None:
    go(page)
    with page.expect_request(lambda request: request.headers.get("x-live") == "1"):
        page.keyboard.press("r")


def test_the_list_of_shortcuts_opens_and_closes(page: Page) -> None:
    go(page)
    page.keyboard.press("?")
    listed = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(listed).to_contain_text("Workflows")
    page.keyboard.press("Escape")
    expect(listed).to_be_hidden()


def test_shortcuts_are_off_while_typing(page: Page) -> None:
    go(page)
    box = page.get_by_role("searchbox").first
    box.focus()
    page.keyboard.type("g j ? / r")
    expect(box).to_have_value("g j ? / r")
    expect(page.get_by_role("dialog")).to_have_count(0)


# The palette.


def test_ctrl_k_opens_the_palette_also_while_typing(page: Page) -> None:
    go(page)
    page.get_by_role("searchbox").first.focus()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("dialog", name="Go to")).to_be_visible()


def test_a_job_can_be_opened_by_keys_alone(site: Site, page: Page) -> None:
    job_id = site.run("greet")
    go(page)
    page.keyboard.press("/")
    box = page.get_by_role("combobox", name="Page, workflow")
    expect(box).to_be_focused()
    page.keyboard.type(job_id)
    option = page.get_by_role("option", name=job_id)
    expect(option).to_be_visible()
    expect(option).to_have_attribute("aria-selected", "true")
    assert box.get_attribute("aria-activedescendant") == option.get_attribute("id")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/ui/jobs/{job_id}")


def test_the_arrows_move_through_the_palette_and_escape_closes_it(page: Page) -> None:
    go(page)
    page.keyboard.press("/")
    options = page.get_by_role("listbox", name="Matches").get_by_role("option")
    expect(options.nth(0)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowDown")
    expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(options.nth(0)).to_have_attribute("aria-selected", "true")
    page.keyboard.type("zzzz nothing")
    expect(options).to_contain_text("No matches")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(page.locator("#palette")).to_be_hidden()
    assert page.url.endswith("/ui/jobs")


# Themes.


@pytest.mark.parametrize("theme", THEMES)
def test_the_theme_follows_the_system_until_one_is_chosen(visit: Callable[..., Visit], theme: Any) -> None:
    page = visit(color_scheme=theme).page
    go(page)
    root = page.locator("html")
    other: Any = "dark" if theme == "light" else "light"
    expect(root).to_have_attribute("data-theme", theme)
    page.emulate_media(color_scheme=other)
    expect(root).to_have_attribute("data-theme", other)
    page.emulate_media(color_scheme=theme)
    expect(root).to_have_attribute("data-theme", theme)
    page.get_by_role("button", name="Switch theme").click()
    expect(root).to_have_attribute("data-theme", other)
    page.reload()
    expect(root).to_have_attribute("data-theme", other)
    page.get_by_role("button", name="Switch theme").click()
    page.emulate_media(color_scheme=other)
    expect(root).to_have_attribute("data-theme", other)


def test_a_theme_chosen_in_another_tab_redraws_canvases(visit: Callable[..., Visit]) -> None:
    page = visit(is_alone=True, color_scheme="light").page
    go(page)
    page.evaluate("document.addEventListener('dm:theme', () => document.body.setAttribute('data-redrawn', ''))")
    other = page.context.new_page()
    go(other)
    other.get_by_role("button", name="Switch theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.locator("body")).to_have_attribute("data-redrawn", "")


# Small components.


def test_an_id_can_be_copied_also_without_a_clipboard_api(site: Site, visit: Callable[..., Visit]) -> None:
    job_id = site.run("greet")
    seen = visit(is_alone=True)
    seen.page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined, configurable: true})")
    go(seen.page)
    seen.page.locator(f"#job-{job_id}").get_by_role("button", name="Copy ID").click()
    expect(seen.page.locator("#toasts")).to_contain_text(f"Copied {job_id}")
    box = seen.page.get_by_role("searchbox").first
    box.focus()
    seen.page.keyboard.press("Control+V")
    expect(box).to_have_value(job_id)


def test_a_toast_is_announced_and_can_be_dismissed(site: Site, page: Page) -> None:
    job_id = site.run("greet")
    go(page)
    page.locator(f"#job-{job_id}").get_by_role("button", name="Copy ID").click()
    toasts = page.locator("#toasts")
    expect(toasts).to_have_attribute("aria-live", "polite")
    page.get_by_role("button", name="Dismiss").click()
    expect(toasts).to_be_empty()


def test_relative_times_stay_current_and_show_the_exact_time(site: Site, page: Page) -> None:
    job_id = site.run("greet")
    go(page)
    time = page.locator(f"#job-{job_id} time").first
    expect(time).to_have_attribute("title", re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$"))
    wording = time.inner_text()
    expect(time).not_to_have_text(wording)
    expect(time).to_have_text(re.compile(r"^\d+ s ago$"))


def test_a_confirmation_focuses_the_safe_button_and_escape_closes_it(site: Site, page: Page) -> None:
    job_id = site.run("greet")
    go(page)
    page.locator(f"[data-check='{job_id}']").check()
    page.get_by_role("toolbar").get_by_role("button", name="Cancel").click()
    question = page.get_by_role("dialog", name="Cancel 1 job?")
    expect(question.get_by_role("button", name="Close")).to_be_focused()
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url) if request.method == "POST" else None)
    page.keyboard.press("Escape")
    expect(question).to_be_hidden()
    assert urls == []


def test_the_menu_opens_on_a_small_screen_and_escape_closes_it(visit: Callable[..., Visit]) -> None:
    page = visit(viewport={"width": 360, "height": 740}).page
    go(page)
    button = page.locator("[data-toggle-sidebar]")
    expect(page.locator("#sidebar")).not_to_be_visible()
    button.click()
    expect(button).to_have_attribute("aria-expanded", "true")
    expect(page.locator("#sidebar").get_by_role("link", name="Dashboard")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#sidebar")).not_to_be_visible()
    expect(button).to_have_attribute("aria-expanded", "false")
    expect(button).to_be_focused()


@pytest.mark.parametrize("path", ["/ui/nonsense", "/ui/jobs/1", "/ui/jobs?offset=x"])
def test_an_unknown_page_links_back(visit: Callable[..., Visit], path: str) -> None:
    seen = visit()
    seen.page.goto("/ui/jobs")
    seen.page.goto(path)
    expect(seen.page.locator(".failure h1")).to_be_visible()
    assert accessibility_findings(seen.page) == []
    seen.page.get_by_role("button", name="Back").click()
    seen.page.wait_for_url("**/ui/jobs")
    seen.forgive("404")
    seen.forgive("422")


# Refreshing.


def requests_of(page: Page, act: Callable[[], None] = lambda: None) -> tuple[list[str], float]:
    """The requests of a page within some seconds, and how many seconds."""
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    began = time.monotonic()
    act()
    page.wait_for_timeout(WATCHED)
    return urls, time.monotonic() - began


def settle(page: Page) -> None:
    """Wait until a page sends no more requests for longer than it waits between two."""
    begun: list[str] = []
    ended: list[str] = []
    page.on("request", lambda request: begun.append(request.url))
    for event in ("requestfinished", "requestfailed"):
        page.on(event, lambda request: ended.append(request.url))
    before = -1
    while before != len(begun) or len(ended) < len(begun):
        before = len(begun)
        page.wait_for_timeout(max(GAP, PATIENCE * page.evaluate(SLOWEST)))


@pytest.mark.parametrize("path", ["/ui/", "/ui/jobs", "/ui/jobs/{job}", "/ui/workflows/greet"])
def test_opening_a_page_requests_it_once(site: Site, page: Page, path: str) -> None:
    job_id = site.run("greet")
    until_quiet(site)
    urls: list[str] = []
    page.on("request", lambda request: urls.append(urlsplit(request.url).path))
    for _ in range(QUIET_TRIES):
        page.goto(EMPTY_PAGE)
        urls.clear()
        with page.expect_websocket() as opened:
            page.goto(path.format(job=job_id))
        # A page that was rendered during a transaction, such as a heartbeat, is rightly requested again.
        if page.evaluate("document.body.dataset.beat % 2"):
            break
    frames: list[str] = []

    def is_second(frame: object) -> bool:
        frames.append(str(frame))
        return len(frames) == 2

    with opened.value.expect_event("framereceived", is_second):
        pass  # The messages "no change" and "idle".
    page.evaluate("new Promise((resolve) => setTimeout(resolve, 100))")
    pages = [path for path in urls if not path.startswith("/ui/static/")]
    assert len(pages) == len(set(pages)), pages


def until_quiet(site: Site) -> None:
    """Wait until the ended jobs cause no more events."""
    with psycopg.connect(site.dsn, autocommit=True) as conn:
        seen = -1
        while True:
            [now] = conn.execute(LAST_EVENT).fetchone() or [0]
            if now == seen:
                return
            seen = now
            time.sleep(0.2)


def test_an_idle_page_sends_no_requests(site: Site, page: Page) -> None:
    until_quiet(site)
    go(page)
    settle(page)
    assert requests_of(page)[0] == []


def test_a_busy_page_refreshes_at_most_every_one_and_a_half_seconds(site: Site, page: Page) -> None:
    go(page)

    def submit_many() -> None:
        with page.expect_request("**"):  # If the page was slow to load, it waits longer.
            for _ in range(30):
                site.submit("greet")

    urls, seconds = requests_of(page, submit_many)
    assert 1 <= len(urls) <= seconds * 1000 / GAP + 2


def test_a_hidden_page_sends_no_requests_and_catches_up(site: Site, page: Page) -> None:
    go(page)
    page.evaluate(
        "() => { Object.defineProperty(document, 'hidden', {get: () => window.isAway, configurable: true});"
        " window.isAway = true; document.dispatchEvent(new Event('visibilitychange')); }"
    )
    settle(page)
    ids: list[str] = []
    assert requests_of(page, lambda: ids.append(site.submit("greet")))[0] == []
    page.evaluate("() => { window.isAway = false; document.dispatchEvent(new Event('visibilitychange')); }")
    expect(page.locator(f"#job-{ids[0]}")).to_contain_text("completed")


def test_a_page_without_websockets_polls(site: Site, visit: Callable[..., Visit]) -> None:
    page = visit(is_alone=True).page
    page.route_web_socket("**/ws/live", lambda socket: socket.close(code=4403))
    page.clock.install(time=0)
    page.clock.pause_at(3600)
    page.goto("/ui/jobs")
    expect(page.locator(LIVE)).to_have_attribute("data-state", "polling")
    job_id = site.run("greet")
    with page.expect_request(lambda request: request.headers.get("x-live") == "1"):
        page.clock.run_for(POLL)
    expect(page.locator(f"#job-{job_id}")).to_contain_text("completed")


def test_a_page_shows_a_server_outage_and_recovers(site: Site, visit: Callable[..., Visit]) -> None:
    seen = visit()
    go(seen.page)
    site.server.stop()
    stale = seen.page.locator("#stale")
    expect(stale).to_be_visible()
    expect(stale.locator("[data-stale-since]")).to_have_text(re.compile(r"\d+:\d\d:\d\d"))
    site.server.start()
    job_id = site.submit("greet")
    expect(stale).to_be_hidden()
    expect(seen.page.locator(LIVE)).to_have_attribute("data-state", "live")
    expect(seen.page.locator(f"#job-{job_id}")).to_contain_text("completed")
    seen.forgive("net::ERR_")  # Refused, reset or empty, depending on when the server closed the connection.
    seen.forgive("WebSocket")


# Times.


def test_times_are_local_until_utc_is_chosen(site: Site, visit: Callable[..., Visit]) -> None:
    job_id = site.run("greet", name="zones")
    page = visit(timezone_id="Asia/Kolkata").page
    go(page, f"/ui/jobs/{job_id}")
    created = page.locator("#job-head time[data-time=exact]").first
    expect(created).to_contain_text("GMT+5:30")
    expect(page.locator("#job-head time[data-time=ago]").first).to_have_attribute("title", re.compile("GMT.5:30"))
    page.get_by_role("button", name="Times in GMT+5:30").click()
    expect(created).to_contain_text("UTC")
    page.reload()
    expect(created).to_contain_text("UTC")
    page.get_by_role("button", name="Times in UTC").click()
    expect(created).to_contain_text("GMT+5:30")
    page.goto("/ui/workflows/greet")
    bar = page.locator(f"#durations-{job_id}")
    expect(bar).to_have_attribute("aria-label", re.compile(rf"job {job_id}, .* GMT\+5:30$"))
    bar.focus()
    expect(page.locator(".tip")).to_have_text(re.compile(r"GMT\+5:30$"))
    expect(page.locator(".chart-along time").last).to_have_attribute("title", re.compile(r"GMT\+5:30$"))


# Actions.


def test_the_second_click_of_a_double_click_is_ignored(site: Site, page: Page) -> None:
    job_id = site.run("fails")
    go(page, f"/ui/jobs/{job_id}")
    page.evaluate("""() => {
        window.pressed = 0;
        const fetched = window.fetch;
        window.fetch = (path, options) => {
            window.pressed += options?.method === "POST";
            return fetched(path, options);
        };
    }""")
    button = page.get_by_role("button", name="Retry failed")
    place = button.bounding_box()
    assert place is not None
    at = place["x"] + place["width"] - 12, place["y"] + place["height"] / 2
    page.mouse.click(*at)
    expect(page.locator("#toasts")).to_contain_text("Retrying")
    page.mouse.down(click_count=2)  # On whatever is there now.
    page.mouse.up(click_count=2)
    expect(page.locator("#confirm")).to_be_hidden()
    assert page.evaluate("window.pressed") == 1
