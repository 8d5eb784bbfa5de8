"""Submitting a job in a browser: the form, its JSON, and its errors."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from browsing import Site, Visit, accessibility_findings
from playwright.sync_api import Page, expect
from serving import server

HEAD = "workflow_id: {id}\nname: {name}\nversion: 1\n"
NODES = """
nodes:
  START: {type: start, next: say}
  say: {type: task, handler: echo, params: {all: "{{ inputs }}"}, next: END}
  END: {type: end}
"""
EVERYTHING = """
description: Shows each kind of field.
inputs:
  name: {type: string, description: Whom to greet.}
  count: {type: integer, default: 3, description: How many.}
  ratio: {type: number, required: false}
  loud: {type: boolean, default: false}
  sure: {type: boolean, required: false}
  tiles: {type: array, default: [1, 2]}
  area: {type: object, required: false}
  api_key: {type: string, required: false}
  colour: {type: string, enum: [red, green], required: false}
  day: {type: string, format: date, required: false}
  level: {type: integer, minimum: 1, maximum: 9, required: false}
"""
FILES = {
    "everything.yaml": HEAD.format(id="everything", name="Every kind") + EVERYTHING + NODES,
    "plain.yaml": HEAD.format(id="plain", name="Plain") + NODES,
    "free.yaml": HEAD.format(id="free", name="Free") + "additional_inputs: true\n" + NODES,
    "asleep.yaml": HEAD.format(id="asleep", name="Asleep") + "is_active: false\n" + NODES,
    "lonely.yaml": HEAD.format(id="lonely", name="Lonely") + NODES.replace("echo,", "echo, queue: far_away,"),
    "broken.yaml": HEAD.format(id="broken", name="Broken") + "nodes:\n  START: {type: start, next: nowhere}\n",
}


@pytest.fixture(scope="module")
def site(shared_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("workflows")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    with server(shared_dsn, folder) as running, closing(Site(running, shared_dsn)) as site:
        yield site


def send(page: Page) -> None:
    page.get_by_role("button", name="Submit").click()


def submitted(site: Site, page: Page, toast: str = "Submitted as") -> dict[str, Any]:
    """The job whose page was opened. Its toast disappears a few seconds after the page was opened."""
    page.wait_for_url("**/ui/jobs/*", wait_until="commit")
    job_id = page.url.rpartition("/")[2]
    expect(page.locator("#toasts")).to_contain_text(re.compile(rf"{toast}.* {job_id}"))
    return site.job(job_id)


def command(page: Page) -> str:
    return page.locator("#as-cli").inner_text()


def test_a_workflow_is_found_by_typing_and_selected_with_enter(site: Site, page: Page) -> None:
    page.goto("/ui/submit")
    broken = page.locator(".troubles")
    expect(broken).to_contain_text("broken.yaml")
    broken.locator("summary").click()
    expect(broken).to_contain_text("nowhere")
    search = page.get_by_label("Filter workflows by name")
    search.fill("nothing like it")
    expect(page.get_by_text("No matching workflows")).to_be_visible()
    search.fill("EVERY kind")
    search.press("Enter")
    expect(page.get_by_role("heading", name="everything")).to_be_visible()


def test_another_workflow_can_be_selected_by_its_id(page: Page) -> None:
    page.goto("/ui/submit?workflow=plain")
    box = page.get_by_label("Another workflow")
    box.fill("free")
    box.press("Tab")
    expect(page.get_by_role("heading", name="free", exact=True).first).to_be_visible()


def test_a_submitted_form_leads_to_the_job(site: Site, page: Page) -> None:
    page.goto("/ui/submit?workflow=everything")
    page.get_by_label("name string").fill("Ada")
    page.get_by_label("count").fill("9007199254740993")
    page.get_by_label("ratio").fill("0.5")
    page.locator("[data-input=loud]").check()
    page.get_by_label("sure").select_option("false")
    page.get_by_label("area").fill('{"bbox": [1, 2, 3, 4]}')
    page.get_by_label("colour").select_option("green")
    page.get_by_label("day").fill("2026-02-28")
    page.get_by_label("level").fill("10")
    send(page)
    expect(page.get_by_text("Must be at most 9").first).to_be_visible()
    page.get_by_label("level").fill("9")
    send(page)
    job = submitted(site, page)
    assert job["input_params"] == {
        "name": "Ada",
        "count": 9007199254740993,
        "ratio": 0.5,
        "loud": True,
        "sure": False,
        "tiles": [1, 2],
        "area": {"bbox": [1, 2, 3, 4]},
        "api_key": None,
        "colour": "green",
        "day": "2026-02-28",
        "level": 9,
    }


def test_each_problem_is_shown_at_its_field_and_no_input_is_lost(page: Page) -> None:
    page.goto("/ui/submit?workflow=everything")
    page.get_by_label("count").fill("2.5")
    page.get_by_label("tiles").fill("[1,\n 2,,]")
    expect(page.locator("#input-5-problem")).to_contain_text("Expected a value at line 2, column 4")
    send(page)
    summary = page.get_by_role("alert").filter(has_text="Fix 3 problems")
    expect(summary).to_be_focused()
    expect(page.locator("#input-0-problem")).to_contain_text("Required")
    expect(page.locator("#input-1-problem")).to_contain_text("whole number")
    expect(page.get_by_label("tiles")).to_have_value("[1,\n 2,,]")
    summary.get_by_role("link", name="tiles").click()
    expect(page.get_by_label("tiles")).to_be_focused()
    page.get_by_label("tiles").fill("[]")
    expect(page.locator("#input-5-problem")).to_be_hidden()


def test_problems_found_by_the_server_are_shown_at_their_fields(visit: Callable[..., Visit]) -> None:
    seen = visit()
    page = seen.page
    page.goto("/ui/submit?workflow=plain")
    page.get_by_text("More options").click()
    page.get_by_label("Callback URL").fill("http://example.com/")
    page.get_by_label("Correlation ID").fill("kept")
    send(page)
    expect(page.locator("#option-callback-problem")).to_contain_text("must begin with https")
    expect(page.get_by_label("Correlation ID")).to_have_value("kept")
    seen.forgive("422")


def test_form_and_json_stay_in_sync(site: Site, page: Page) -> None:
    page.goto("/ui/submit?workflow=everything")
    page.get_by_label("name string").fill("Ada")
    page.get_by_role("tab", name="JSON").click()
    editor = page.get_by_label("All inputs as a JSON object")
    assert json.loads(editor.input_value()) == {"name": "Ada", "count": 3, "loud": False, "tiles": [1, 2]}
    editor.fill('{"name": "Eve", "count": 12345678901234567890, "tiles": [\n  "a"\n]}')
    page.get_by_role("tab", name="JSON").press("ArrowLeft")
    expect(page.get_by_label("name string")).to_have_value("Eve")
    expect(page.get_by_label("count")).to_have_value("12345678901234567890")
    expect(page.get_by_label("tiles")).to_have_value('[\n"a"\n]')
    page.get_by_role("tab", name="JSON").click()
    editor.fill('{"name": "Eve"}')
    send(page)
    assert submitted(site, page)["input_params"]["name"] == "Eve"


def test_wrong_values_survive_a_look_at_the_json(page: Page) -> None:
    page.goto("/ui/submit?workflow=everything")
    page.get_by_label("level").fill("10")
    page.get_by_role("tab", name="JSON").click()
    assert json.loads(page.get_by_label("All inputs as a JSON object").input_value())["level"] == 10
    page.get_by_role("tab", name="Form").click()
    expect(page.get_by_label("level")).to_have_value("10")
    page.get_by_label("tiles").fill("[1,")
    page.get_by_role("tab", name="JSON").click()
    expect(page.get_by_label("tiles")).to_be_focused()
    expect(page.get_by_label("tiles")).to_have_value("[1,")


def test_a_click_on_submit_is_not_lost_when_it_reveals_a_problem(page: Page) -> None:
    page.goto("/ui/submit?workflow=everything")
    page.get_by_label("name string").fill("Ada")
    page.get_by_label("level").fill("10")
    send(page)
    expect(page.get_by_role("alert").filter(has_text="Fix 1 problem")).to_be_focused()


def test_a_json_error_is_shown_with_line_and_column(page: Page) -> None:
    page.goto("/ui/submit?workflow=everything")
    page.get_by_role("tab", name="JSON").click()
    editor = page.get_by_label("All inputs as a JSON object")
    problem = page.locator("#json-problem")
    for typed, complaint in {
        '{\n  "name" "Ada"\n}': "Expected a colon at line 2, column 10",
        '{"name": "Ada",\n}': "Expected a name in double quotes at line 2, column 1",
        '{"name": Ada}': "Expected a value at line 1, column 10",
        '{"name": "Ada"': "Unexpected end, expected a comma or } at line 1, column 15",
        "[1]": "one object",
        '{"name": 3}': "name: must be a string",
        '{"name": "Ada", "nam": 1}': "nam: unknown input",
    }.items():
        editor.fill(typed)
        expect(problem).to_contain_text(complaint)
    editor.fill("{")
    page.get_by_role("tab", name="Form").click()
    expect(editor).to_be_focused()


def test_undeclared_inputs_are_accepted_if_the_workflow_allows_them(site: Site, page: Page) -> None:
    page.goto("/ui/submit?workflow=free")
    page.get_by_role("tab", name="JSON").click()
    page.get_by_label("All inputs as a JSON object").fill('{"any": {"thing": 1}}')
    page.get_by_role("tab", name="Form").click()
    send(page)
    assert submitted(site, page)["input_params"] == {"any": {"thing": 1}}


def test_the_command_and_the_api_call_follow_the_form_and_hide_secrets(page: Page) -> None:
    page.goto("/ui/submit?workflow=everything")
    page.get_by_label("name string").fill("Ada's")
    page.get_by_label("api_key").fill("hunter2")
    page.get_by_text("More options").click()
    page.get_by_label("Priority").fill("5")
    page.get_by_label("Metadata").fill('{"why": 1}')
    assert "-i 'name=Ada'\\''s'" in command(page)
    assert "--priority 5" in command(page) and "count=" not in command(page)
    call = page.locator("#as-curl")
    expect(call).to_contain_text('"metadata": {"why": 1}')
    assert "hunter2" not in command(page) + call.inner_text()
    page.get_by_role("button", name="Copy command").click()
    expect(page.locator("#toasts")).to_contain_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == command(page)


def test_all_options_reach_the_job(site: Site, page: Page) -> None:
    for toast in ("Submitted as", "Already submitted with this idempotency key"):
        page.goto("/ui/submit?workflow=plain")
        page.get_by_text("More options").click()
        page.get_by_label("Priority").fill("7")
        page.get_by_label("Correlation ID").fill("order 12")
        page.get_by_label("Idempotency key").fill("once")
        page.get_by_label("Metadata").fill('{"why": "because"}')
        send(page)
        job = submitted(site, page, toast)
        assert (job["priority"], job["correlation_id"], job["metadata"]) == (7, "order 12", {"why": "because"})


def test_the_form_can_be_filled_with_an_earlier_jobs_inputs(site: Site, page: Page) -> None:
    job_id = site.submit("everything", name="Ada", count=8, tiles=["a"], api_key="hunter2")
    page.goto(f"/ui/submit?from={job_id}")
    expect(page.get_by_label("name string")).to_have_value("Ada")
    expect(page.get_by_label("count")).to_have_value("8")
    expect(page.get_by_label("api_key")).to_have_value("")
    expect(page.locator(".notice").filter(has_text=job_id)).to_contain_text("enter them again: api_key")
    assert "hunter2" not in page.content()


def test_the_form_survives_a_reload_without_its_secrets(page: Page) -> None:
    page.goto("/ui/submit?workflow=everything")
    page.get_by_label("name string").fill("Ada")
    page.get_by_label("api_key").fill("hunter2")
    assert "hunter2" not in page.evaluate("JSON.stringify(sessionStorage)")
    page.reload()
    expect(page.get_by_label("name string")).to_have_value("Ada")
    page.get_by_role("link", name="Start over").click()
    expect(page.get_by_label("name string")).to_have_value("")


def test_whether_workers_can_run_the_job_is_shown_before_and_after(site: Site, page: Page) -> None:
    page.goto("/ui/submit?workflow=lonely")
    expect(page.locator(".notice.is-warning")).to_contain_text("No worker takes tasks")
    send(page)
    submitted(site, page)
    expect(page.locator(".toast.is-warning")).to_contain_text("No worker takes tasks")


def test_a_workflow_that_cannot_be_started_is_explained(visit: Callable[..., Visit]) -> None:
    seen = visit()
    seen.page.goto("/ui/submit?workflow=asleep")
    expect(seen.page.locator(".notice.is-warning")).to_contain_text("inactive")
    send(seen.page)
    expect(seen.page.get_by_role("alert").filter(has_text="rejected")).to_contain_text("is not active")
    seen.page.goto("/ui/submit?workflow=unknown")
    expect(seen.page.get_by_role("alert").filter(has_text="unknown")).to_contain_text("Choose another one")
    seen.forgive("409")
    seen.forgive("404")


def test_a_server_outage_loses_no_input(site: Site, visit: Callable[..., Visit]) -> None:
    seen = visit()
    seen.page.goto("/ui/submit?workflow=everything")
    seen.page.get_by_label("name string").fill("Ada")
    seen.page.route("**/api/v1/jobs", lambda route: route.abort())
    send(seen.page)
    expect(seen.page.get_by_role("alert").filter(has_text="cannot be reached")).to_be_focused()
    seen.page.unroute("**/api/v1/jobs")
    send(seen.page)
    assert submitted(site, seen.page)["input_params"]["name"] == "Ada"
    seen.forgive("ERR_FAILED")


@pytest.mark.parametrize("width", [360, 1440])
def test_the_form_is_accessible(visit: Callable[..., Visit], width: int) -> None:
    page = visit(viewport={"width": width, "height": 900}).page
    for path in ("/ui/submit", "/ui/submit?workflow=everything"):
        page.goto(path)
        if "workflow" in path:
            page.get_by_text("More options").click()
            send(page)
        assert accessibility_findings(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
