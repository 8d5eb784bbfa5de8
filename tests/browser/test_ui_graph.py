"""The graph of a job in a browser: live, by mouse, by keyboard, and with many nodes."""

import asyncio
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, product
from typing import Any

import pytest
from browsing import SOON, Site, Visit, accessibility_findings
from fleet import graph, task
from playwright.sync_api import FloatRect, Locator, Page, ViewportSize, expect

from dagmaster.model.workflow import StartNode
from dagmaster.store import submission
from dagmaster.store.connect import opened

MANY = 5000
WIDE = 98
OPEN_SECONDS = 3.0
PROBE_SECONDS = 0.1
PHONE: ViewportSize = {"width": 390, "height": 844}
MAX_HEIGHT = 6500  # Of a page with a hundred nodes on a phone.
# As the page has loaded it: at another URL it would be another module.
COMPONENT = "import(document.querySelector('script[src$=\"/graph/component.js\"]').src)"


@pytest.fixture(scope="module")
def asking(site: Site) -> str:
    """A job that waits for its approval."""
    job_id = site.submit("forks")
    signal(site, job_id)
    wait_for(site, job_id, "ask", "running")
    return job_id


def signal(site: Site, job_id: str) -> None:
    site.client.post(f"/api/v1/jobs/{job_id}/signals/go").raise_for_status()


def wait_for(site: Site, job_id: str, node_id: str, status: str) -> None:
    deadline = time.monotonic() + SOON
    address = f"/api/v1/jobs/{job_id}/nodes/{node_id}"
    while (current := site.client.get(address).raise_for_status().json()["status"]) != status:
        assert time.monotonic() < deadline, f"{node_id} is {current}"
        time.sleep(0.05)


def open_graph(page: Page, job_id: str) -> None:
    page.goto(f"/ui/jobs/{job_id}")
    expect(page.locator("[data-graph][data-drawn]")).to_be_visible()
    fit(page)


def fit(page: Page) -> None:
    """Show the whole graph, and wait until it stands still: a moving node leaves the mouse."""
    page.locator('[data-do="fit"]').click()
    page.evaluate(
        """() => new Promise((done) => {
        const look = () => requestAnimationFrame(document.querySelector('.graph-view').__transition ? look : done);
        look();
        })"""
    )


def card(page: Page, node_id: str) -> Locator:
    return page.locator(f'.gnode[data-node="{node_id}"]')


def edge(page: Page, source: str, target: str) -> Locator:
    return page.locator(f'.gedge[data-edge="{source} → {target}"]')


def render(page: Page, drawn: str) -> None:
    """Draw this graph, a JavaScript expression, instead of the job's."""
    page.evaluate(f"{COMPONENT}.then((graph) => graph.render(document.querySelector('[data-graph]'), {drawn}))")


def focused(page: Page) -> str:
    node_id: str = page.evaluate("document.activeElement.closest('.gnode')?.dataset.node ?? ''")
    return node_id


def test_nodes_change_while_the_job_runs(site: Site, page: Page) -> None:
    job_id = site.submit("forks")
    wait_for(site, job_id, "hold", "running")
    open_graph(page, job_id)
    expect(card(page, "hold")).to_have_attribute("data-status", "waiting")
    expect(card(page, "hold")).to_contain_text("awaits signal")
    expect(card(page, "join")).to_have_attribute("data-status", "pending")
    expect(edge(page, "hold", "choose")).to_have_attribute("data-kind", "undecided")
    signal(site, job_id)
    expect(card(page, "join")).to_have_attribute("data-status", "completed")
    expect(card(page, "ask")).to_contain_text("needs approval")
    expect(edge(page, "hold", "choose")).to_have_attribute("data-kind", "live")


def test_a_hidden_graph_sends_no_requests_and_catches_up(site: Site, page: Page) -> None:
    job_id = site.submit("forks")
    wait_for(site, job_id, "hold", "running")
    open_graph(page, job_id)
    page.evaluate(
        "() => { Object.defineProperty(document, 'hidden', {get: () => window.isAway, configurable: true});"
        " window.isAway = true; document.dispatchEvent(new Event('visibilitychange')); }"
    )
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    signal(site, job_id)
    expect(card(page, "gather")).to_have_attribute("data-status", "completed")
    expect(card(page, "ask")).to_contain_text("running")
    assert urls == []
    page.evaluate("() => { window.isAway = false; document.dispatchEvent(new Event('visibilitychange')); }")
    expect(card(page, "ask")).to_contain_text("needs approval")


def test_the_taken_branch_is_labelled(page: Page, asking: str) -> None:
    open_graph(page, asking)
    expect(edge(page, "choose", "left")).to_have_attribute("data-kind", "live")
    expect(edge(page, "choose", "left").locator("text")).to_have_text("✓ true")
    expect(edge(page, "choose", "right")).to_have_attribute("data-kind", "dead")
    expect(card(page, "right")).to_have_attribute("data-status", "skipped")
    expect(card(page, "right").get_by_role("button")).to_have_attribute("aria-label", "right skipped, task")


def test_a_fan_out_is_one_node_whose_items_expand(page: Page, asking: str) -> None:
    open_graph(page, asking)
    expect(page.locator(".gnode")).to_have_count(11)
    expect(card(page, "spread").locator(".ring")).to_be_visible()
    items = card(page, "spread").locator(".gnode-items")
    expect(items).to_have_text("9/10 · 1 failed")
    word = card(page, "spread").locator(".gnode-word")
    expect(word).to_have_text("completed")
    assert word.evaluate("word => word.scrollWidth <= word.clientWidth"), "the word is cut"
    items.click()
    panel = page.locator(".graph-panel")
    expect(panel.locator(".grid-item")).to_have_count(10)
    panel.get_by_role("button", name="failed 1").click()
    expect(panel.locator(".grid-item")).to_have_count(1)
    expect(panel.locator(".grid-item")).to_have_attribute("href", f"/ui/jobs/{asking}/nodes/spread__3")
    panel.get_by_role("button", name="Back to node").click()
    expect(panel.get_by_role("heading", name="spread")).to_be_visible()


def test_the_numbers_of_a_fan_out_stand_apart_in_the_table(page: Page, asking: str) -> None:
    page.goto(f"/ui/jobs/{asking}")
    done, failed = (box_of(page.locator(f"#node-spread .fold > {part}")) for part in (".progress", ".error-line"))
    assert failed["x"] >= done["x"] + done["width"] + 4


def test_the_panel_describes_a_node_and_closes(page: Page, asking: str) -> None:
    open_graph(page, asking)
    card(page, "left").get_by_role("button").click()
    panel = page.locator(".graph-panel")
    expect(panel).to_contain_text("completed")
    expect(panel).to_contain_text("sleep")
    expect(panel.get_by_role("link", name="Open node")).to_have_attribute("href", f"/ui/jobs/{asking}/nodes/left")
    expect(panel.get_by_text(f"dagmaster logs {asking} left")).to_be_visible()
    expect(card(page, "left")).to_have_class("gnode is-selected")
    page.keyboard.press("/")
    expect(page.locator("#palette")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#palette")).to_be_hidden()
    expect(panel).to_be_visible()
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    assert focused(page) == "left"


def test_an_approval_can_be_given_in_the_panel(site: Site, page: Page) -> None:
    job_id = site.submit("forks")
    signal(site, job_id)
    wait_for(site, job_id, "ask", "running")
    open_graph(page, job_id)
    card(page, "ask").get_by_role("button").click()
    panel = page.locator(".graph-panel")
    expect(panel).to_contain_text("May <script>alert(1)</script> go out?")
    expect(panel).to_contain_text("needs approval")
    panel.get_by_role("button", name="Approve").click()
    expect(page.locator("#confirm-text")).to_have_text("May <script>alert(1)</script> go out?")
    page.locator("#confirm-yes").click()
    expect(card(page, "ask")).to_have_attribute("data-status", "completed")
    expect(card(page, "last")).to_have_attribute("data-status", "completed")
    expect(panel.get_by_role("button", name="Approve")).to_have_count(0)


def test_a_failed_node_shows_why_and_can_be_retried(site: Site, page: Page) -> None:
    job_id = site.run("fails")
    [failed] = [node["node_id"] for node in site.job(job_id)["nodes"] if node["status"] == "failed"]
    open_graph(page, job_id)
    expect(card(page, failed)).to_have_attribute("data-status", "failed")
    card(page, failed).get_by_role("button").click()
    panel = page.locator(".graph-panel")
    expect(panel.locator(".panel-error")).not_to_be_empty()
    before = site.client.get(f"/api/v1/jobs/{job_id}/graph").json()["last_event_id"]
    panel.get_by_role("button", name="Retry", exact=True).click()
    expect(page.locator("#toasts")).to_contain_text("Retrying")
    site.until(job_id, "failed", "completed")
    assert int(site.client.get(f"/api/v1/jobs/{job_id}/graph").json()["last_event_id"]) > int(before)


def test_the_graph_can_be_used_by_keyboard_alone(page: Page, asking: str) -> None:
    open_graph(page, asking)
    page.get_by_role("button", name="Zoom out").focus()
    while not focused(page):
        page.keyboard.press("Tab")
    assert focused(page) == "START"
    for key in ("ArrowRight", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert focused(page) in ("left", "right")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert focused(page) == "spread"
    page.keyboard.press("Tab")
    expect(card(page, "spread").locator(".gnode-items")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".graph-panel .grid-item")).to_have_count(10)
    expect(page.locator("[data-panel-close]")).to_be_focused()
    page.keyboard.press("Escape")
    assert focused(page) == "spread"
    page.keyboard.press("Home")
    assert focused(page) == "START"


def test_the_path_through_a_node_is_highlighted(page: Page, asking: str) -> None:
    open_graph(page, asking)
    card(page, "left").hover()
    expect(card(page, "right")).to_have_class("gnode is-off")
    expect(card(page, "ask")).not_to_have_class("gnode is-off")
    page.mouse.move(5, 5)
    expect(card(page, "right")).to_have_class("gnode")
    page.evaluate(f"{COMPONENT}.then((graph) => graph.highlightPath('right'))")
    expect(card(page, "left")).to_have_class("gnode is-off")
    page.evaluate(
        f"async (job) => {{ const component = await {COMPONENT};"
        """const graph = await (await fetch(`/api/v1/jobs/${job}/graph`)).json();
        for (let times = 0; times < 2; times += 1) component.render(document.querySelector('[data-graph]'), graph);
        await new Promise(requestAnimationFrame);
        }""",
        asking,
    )
    expect(card(page, "right")).to_have_class("gnode")
    expect(card(page, "left")).to_have_class("gnode is-off")


def test_the_critical_path_is_shown_on_request(page: Page, asking: str) -> None:
    open_graph(page, asking)
    page.get_by_role("button", name="Critical path").click()
    for node_id in ("START", "hold", "choose", "left", "join", "spread", "gather", "ask"):
        expect(card(page, node_id)).to_have_class("gnode is-critical")
    expect(card(page, "right")).to_have_class("gnode")


def test_other_scripts_can_draw_and_update_the_graph(page: Page, asking: str) -> None:
    open_graph(page, asking)
    page.evaluate(f"{COMPONENT}.then((graph) => graph.updateNodeStatus('END', 'failed'))")
    expect(card(page, "END")).to_have_attribute("data-status", "failed")
    render(page, "{nodes: [{node_id: '<script>alert(1)</script>', type: 'task', status: 'running'}], edges: []}")
    expect(page.locator(".gnode-name")).to_have_text("<script>alert(1)</script>")
    render(
        page,
        "{nodes: ['constructor', 'toString'].map((node_id) => ({node_id, type: 'task'})),"
        " edges: [{source: 'constructor', target: 'toString'}]}",
    )
    expect(page.locator(".gnode-name")).to_have_text(["constructor", "toString"])


def test_a_phone_shows_the_panel_as_a_sheet(visit: Callable[..., Visit], asking: str) -> None:
    page = visit(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True).page
    page.goto(f"/ui/jobs/{asking}")
    card(page, "ask").get_by_role("button").tap()
    panel = page.locator(".graph-panel")
    expect(panel).to_be_visible()
    assert box_of(panel)["width"] == 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_graph_is_accessible(visit: Callable[..., Visit], asking: str) -> None:
    # At full size: zoomed out, nodes are smaller than a finger.
    page = visit(reduced_motion="reduce", viewport={"width": 3400, "height": 900}).page
    open_graph(page, asking)
    card(page, "spread").locator(".gnode-items").click()
    expect(page.locator(".graph-panel .grid-item")).to_have_count(10)
    page.mouse.move(5, 5)
    findings = accessibility_findings(page)
    assert [finding for finding in findings if any(part in finding for part in ("graph", "gnode", "panel"))] == []
    assert page.evaluate("getComputedStyle(document.querySelector('.gnode-main')).animationName") == "none"


def submit_wide(dsn: str) -> int:
    """The maximum number of nodes, in a queue without workers."""
    depth = (MANY - 2) // WIDE
    nodes: dict[str, Any] = {"START": StartNode(next=tuple(f"n0_{row}" for row in range(WIDE)))}
    for column in range(depth):
        for row in range(WIDE):
            following = sorted({f"n{column + 1}_{row}", f"n{column + 1}_{(row * 7 + 3) % WIDE}"})
            targets = following if column + 1 < depth else ["END"]
            nodes[f"n{column}_{row}"] = task("echo", *targets, queue="nobodys")

    async def submit() -> int:
        async with opened(dsn, application="test") as conn:
            return (
                await submission.submit(conn, submission.NewJob(graph(nodes, "wide"), {}), threshold_seconds=30)
            ).job_id

    with ThreadPoolExecutor(1) as thread:  # Playwright's event loop runs in this thread.
        return thread.submit(asyncio.run, submit()).result()


def until_queued(site: Site, number: int) -> None:
    deadline = time.monotonic() + 3 * SOON
    while True:
        queues = site.client.get("/api/v1/queues/status", timeout=60).json()["queues"]
        if [queue["depth"] for queue in queues if queue["queue"] == "nobodys"] == [number]:
            return
        assert time.monotonic() < deadline, queues
        time.sleep(0.2)


def slowdown() -> float:
    """The factor by which a busy machine slows everything down."""
    began, used = time.monotonic(), time.thread_time()
    while time.thread_time() - used < PROBE_SECONDS:
        pass
    return max(1.0, (time.monotonic() - began) / PROBE_SECONDS)


def test_a_job_of_five_thousand_nodes_opens_quickly(site: Site, page: Page) -> None:
    job_id = str(submit_wide(site.dsn))
    until_queued(site, WIDE)
    took: list[Any] = []
    while len(took) < 6 and min(took, default=OPEN_SECONDS) >= OPEN_SECONDS:  # The machine may be busy.
        page.goto(f"/ui/jobs/{job_id}", wait_until="commit", timeout=60_000)
        drawn = page.locator("[data-graph][data-ms]")
        expect(drawn).to_be_visible(timeout=60_000)
        seconds = int(drawn.get_attribute("data-ms") or 0) / 1000  # From the click: page, graph and drawing.
        took.append(seconds / slowdown())
        expect(page.locator("#why-later")).to_contain_text("no worker consumes this queue")
    assert min(took) < OPEN_SECONDS
    expect(page.locator(".graph-count")).to_contain_text("5,000 nodes")
    expect(page.locator(".graph-far")).to_be_visible()
    assert page.locator(".gnode").count() < 400
    expect(card(page, "START")).to_have_css("opacity", "0")  # Zoomed out, it is a rectangle like all others.
    page.get_by_role("group", name="Nodes").get_by_role("button").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".graph-far")).to_be_hidden()
    expect(page.locator(".graph-map")).to_be_visible()
    assert focused(page).startswith("n0_")
    assert 1 < page.locator(".gnode").count() < 400
    page.keyboard.press("Enter")
    expect(page.locator("#panel-why")).to_contain_text("no worker consumes this queue")
    page.evaluate("document.querySelector('#panel-why').isSame = true")
    with page.expect_response(lambda response: response.url.endswith("/panel")):
        page.locator(".gnode.is-selected").get_by_role("button").first.click()
    expect(page.locator("#panel-why")).to_contain_text("no worker consumes this queue")
    assert page.evaluate("document.querySelector('#panel-why').isSame")
    page.keyboard.press("Escape")
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollHeight") < MAX_HEIGHT


def test_the_selected_node_is_in_the_url(page: Page, asking: str) -> None:
    open_graph(page, asking)
    card(page, "choose").locator(".gnode-main").click()
    expect(page.locator(".graph-panel h2")).to_have_text("choose")
    expect(page).to_have_url(re.compile("#node=choose$"))
    page.reload()
    expect(page.locator(".graph-panel h2")).to_have_text("choose")
    page.keyboard.press("Escape")
    expect(page.locator(".graph-panel")).to_be_hidden()
    expect(page).to_have_url(re.compile("^[^#]*$"))


def test_branch_labels_are_not_covered(page: Page, asking: str) -> None:
    open_graph(page, asking)
    expect(edge(page, "choose", "left").locator("text")).to_have_text("✓ true")
    render(
        page,
        "{nodes: ['a', 'b', 'c', 'd', 'e'].map((node_id) => ({node_id, type: 'task'})), edges: ["
        " {source: 'a', target: 'b', branch: 'larger than two gigabytes', kind: 'live'},"
        " {source: 'a', target: 'c', branch: 'x'}, {source: 'c', target: 'd', branch: 'y'},"
        " {source: 'b', target: 'd', branch: 'an extraordinarily long name of a branch'},"
        " {source: 'd', target: 'e'}]}",
    )
    names = page.locator(".gedge-branch")
    expect(names).to_have_text(["✓ larger than two gigabytes", "x", "y", "an extraordinarily long nam…"])
    fit(page)
    boxes = [box_of(name) for name in names.all()]
    others = [box_of(node) for node in page.locator(".gnode-main").all()]
    assert not [pair for pair in product(boxes, others) if meet(*pair)]
    assert not [pair for pair in combinations(boxes, 2) if meet(*pair)]


def box_of(element: Locator) -> FloatRect:
    box = element.bounding_box()
    assert box is not None
    return box


def meet(first: Any, second: Any) -> bool:
    return all(
        first[at] < second[at] + second[size] and second[at] < first[at] + first[size]
        for at, size in (("x", "width"), ("y", "height"))
    )


def test_a_short_graph_grows_to_fit_its_panel(site: Site, page: Page) -> None:
    page.goto(f"/ui/jobs/{site.run('greet')}")
    card(page, "say").get_by_role("button").click()
    panel = page.locator(".graph-panel")
    expect(panel.get_by_role("heading", name="say")).to_be_visible()
    assert box_of(panel)["height"] >= 440
