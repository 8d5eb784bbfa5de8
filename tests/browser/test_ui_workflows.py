"""The list of workflows and the page of one in a browser."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from browsing import Site, Visit
from playwright.sync_api import Page, expect
from serving import server

SCRIPT = "<script>document.title = 'taken over'</script>"
LONG = "a_rather_long_name_of_a_workflow_that_nobody_would_want_to_type"
ROUTES = f"""
workflow_id: routes
name: Routes
version: 3
description: "Fails when it is told to. {SCRIPT}"
schedule: {{cron: "0 3 29 2 *"}}
inputs:
  fails: {{type: boolean, default: false, description: Whether it fails.}}
  api_key: {{type: string, default: hunter2}}
nodes:
  START: {{type: start, next: choose}}
  choose:
    type: conditional
    condition: "{{{{ inputs.fails }}}}"
    on_true: bad
    on_false: good
  bad: {{type: task, handler: fail, params: {{message: broken}}, retry: {{max_attempts: 0}}, next: END}}
  good: {{type: task, handler: echo, next: END}}
  END: {{type: end}}
"""
PLAIN = f"""
workflow_id: {LONG}
name: Long
nodes:
  START: {{type: start, next: say}}
  say: {{type: task, handler: echo, next: END}}
  END: {{type: end}}
"""
UNUSED = PLAIN.replace(LONG, "unused")
BROKEN = """
workflow_id: broken
nodes:
  START: {type: start, next: nowhere}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workflows")
    for name, text in {"routes": ROUTES, "plain": PLAIN, "unused": UNUSED, "broken": BROKEN}.items():
        (path / f"{name}.yaml").write_text(text)
    return path


@pytest.fixture(scope="module")
def site(shared_dsn: str, folder: Path) -> Iterator[Site]:
    with server(shared_dsn, folder) as running, closing(Site(running, shared_dsn)) as site:
        yield site


@pytest.fixture(scope="module")
def failed(site: Site) -> str:
    """Two completed runs, and a later failed one."""
    site.run("routes")
    site.run("routes")
    return site.run("routes", fails=True)


def test_the_list_shows_the_statistics_of_each_workflow(site: Site, failed: str, page: Page) -> None:
    page.goto("/ui/workflows")
    row = page.locator("#workflow-routes")
    expect(row).to_contain_text("v3")
    expect(row.get_by_role("link", name=re.compile("failed"))).to_have_attribute("href", f"/ui/jobs/{failed}")
    expect(row.get_by_role("img")).to_have_attribute("aria-label", "Of the last 3 runs: 1 failed, 2 completed")
    expect(row).to_contain_text("67 %")
    expect(row).to_contain_text(SCRIPT)
    expect(page.locator("#workflow-unused")).to_contain_text("never run")


def test_a_search_filters_the_list(site: Site, page: Page) -> None:
    page.goto("/ui/workflows")
    search = page.get_by_role("searchbox", name="ID, name or description")
    search.fill("told to")
    search.press("Enter")
    page.wait_for_url("**/ui/workflows?text=told+to")
    expect(page.locator("#workflows tbody tr")).to_have_count(1)


def test_a_broken_file_is_shown_until_it_is_fixed(site: Site, folder: Path, page: Page) -> None:
    page.goto("/ui/workflows")
    problems = page.locator("#problems")
    expect(problems).to_contain_text("broken.yaml")
    expect(problems).to_contain_text("unknown node 'nowhere'")
    expect(problems).to_contain_text("dagmaster validate broken.yaml")
    (folder / "broken.yaml").unlink()
    page.get_by_role("button", name="Reload files").click()
    expect(problems).to_be_hidden()


def test_the_page_of_a_workflow_shows_its_graph_inputs_and_definition(site: Site, failed: str, page: Page) -> None:
    page.goto("/ui/workflows/routes")
    expect(page).to_have_title("routes · dagmaster")
    expect(page.locator("#graph")).to_contain_text("choose")
    expect(page.locator("#head")).to_contain_text("0 3 29 2 *")
    expect(page.locator("#head").get_by_role("link", name="Submit")).to_have_attribute(
        "href", "/ui/submit?workflow=routes"
    )
    expect(page.locator("#inputs")).to_contain_text("Whether it fails.")
    expect(page.locator("main")).not_to_contain_text("hunter2")
    expect(page.locator("#versions tbody tr")).to_contain_text("current")
    page.get_by_role("button", name="Copy definition as YAML").click()
    expect(page.locator("#toasts")).to_contain_text("Copied")
    assert "workflow_id: routes" in page.evaluate("navigator.clipboard.readText()")


def test_a_failed_cell_of_the_grid_links_to_its_node(site: Site, failed: str, page: Page) -> None:
    page.goto("/ui/workflows/routes")
    cell = page.locator("#node-bad .cell.is-failed").last
    expect(cell).to_have_attribute("aria-label", re.compile("bad: failed, .*broken"))
    expect(cell).to_have_attribute("href", f"/ui/jobs/{failed}/nodes/bad")
    cell.focus()
    expect(page.locator(".tip")).to_contain_text("broken")
    expect(page.locator("#node-good .cell.is-skipped")).not_to_have_count(0)


def test_a_bar_links_to_its_run(site: Site, failed: str, page: Page) -> None:
    page.goto("/ui/workflows/routes")
    bar = page.locator(f"#durations-{failed}")
    bar.focus()
    expect(page.locator(".tip")).to_contain_text(f"job {failed}")
    bar.press("Enter")
    page.wait_for_url(f"**/ui/jobs/{failed}")


def test_a_run_appears_in_the_grid_without_a_reload(site: Site, page: Page) -> None:
    page.goto(f"/ui/workflows/{LONG}")
    expect(page.locator("#durations-card")).to_contain_text("No runs yet")
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    site.run(LONG)
    expect(page.locator("#durations .column")).to_have_count(1)


def test_an_unknown_workflow_is_a_page_that_says_so(site: Site, visit: Callable[..., Visit]) -> None:
    someone = visit()
    answer = someone.page.goto("/ui/workflows/nothing")
    assert answer is not None
    assert answer.status == 404
    expect(someone.page.get_by_role("heading", name="Not found")).to_be_visible()
    someone.forgive("404")


@pytest.mark.parametrize("path", ["/ui/workflows", "/ui/workflows/routes", f"/ui/workflows/{LONG}"])
def test_workflow_pages_fit_a_phone(site: Site, failed: str, visit: Callable[..., Visit], path: str) -> None:
    page = visit(viewport={"width": 360, "height": 740}).page
    page.goto(path)
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
