"""Keys in a browser: created, shown once, used to sign in, and revoked; and the pages of each role."""

from collections.abc import Callable

import pytest
from browsing import Site, Visit
from playwright.sync_api import Page, expect

from dagmaster.model.access import Role


@pytest.fixture(scope="module")
def keys(site: Site) -> dict[Role, str]:
    """One key of each role. The first one is created while none is required."""
    key_of: dict[Role, str] = {}
    for role in (Role.ADMIN, *(role for role in Role if role is not Role.ADMIN)):
        headers = {"Authorization": f"Bearer {key_of[Role.ADMIN]}"} if key_of else {}
        answer = site.client.post("/api/v1/keys", json={"name": f"the {role}", "role": role}, headers=headers)
        key_of[role] = answer.raise_for_status().json()["key"]
    return key_of


@pytest.fixture
def sign_in(visit: Callable[..., Visit], keys: dict[Role, str]) -> Callable[[Role], Visit]:
    def enter(role: Role) -> Visit:
        visited = visit()
        assert visited.context.request.post("/ui/login", form={"key": keys[role]}, max_redirects=0).status == 303
        return visited

    return enter


def test_a_key_can_be_created_shown_once_and_revoked(sign_in: Callable[[Role], Visit]) -> None:
    page = sign_in(Role.ADMIN).page
    page.goto("/ui/keys")
    page.get_by_label("Name").fill("nightly importer")
    page.get_by_label("Role").select_option("operator")
    page.get_by_label("Expires").select_option("30")
    page.get_by_role("button", name="Create key").click()
    dialog = page.get_by_role("dialog", name="Key of nightly importer")
    expect(dialog).to_contain_text("shown only once")
    key = dialog.locator("[data-key]").inner_text()
    assert key.startswith("dm_")
    # As over plain HTTP on another machine, where pages have no clipboard.
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('not here')) }")
    dialog.get_by_role("button", name="Copy").click()
    expect(page.locator("#toasts")).to_contain_text("Key copied")
    assert page.evaluate("navigator.clipboard.readText()") == key
    dialog.get_by_role("button", name="Done").click()
    row = page.locator("#keys tbody tr", has_text="nightly importer")
    expect(row).to_contain_text("operator")
    expect(row).to_contain_text("the admin")
    assert key not in page.content()
    row.get_by_role("button", name="Revoke").click()
    expect(page.locator("#confirm")).to_contain_text("Revoke the key of nightly importer?")
    page.locator("#confirm-yes").click()
    expect(row).to_contain_text("revoked")
    expect(row.get_by_role("button", name="Revoke")).to_have_count(0)


def test_the_first_key_stays_visible_although_everyone_is_signed_out(sign_in: Callable[[Role], Visit]) -> None:
    visited = sign_in(Role.ADMIN)
    page = visited.page
    page.goto("/ui/keys")
    page.get_by_label("Name").fill("first")
    page.get_by_role("button", name="Create key").click()
    dialog = page.get_by_role("dialog", name="Key of first")
    expect(dialog.locator("[data-key]")).to_contain_text("dm_")
    visited.context.clear_cookies()
    with page.expect_response(lambda response: "x-login" in response.headers):
        page.evaluate("document.querySelector('[data-refresh]').click()")
    expect(dialog.locator("[data-key]")).to_contain_text("dm_")
    dialog.get_by_role("button", name="Done").click()
    page.wait_for_url("**/ui/login**")
    visited.forgive("401")


def test_a_reviewers_key_can_be_limited_to_one_platform(sign_in: Callable[[Role], Visit]) -> None:
    page = sign_in(Role.ADMIN).page
    page.goto("/ui/keys")
    page.get_by_label("Name").fill("hub review")
    expect(page.get_by_label("Platform")).to_be_hidden()
    page.get_by_label("Role").select_option("reviewer")
    page.get_by_label("Platform").select_option("ddh")
    page.get_by_role("button", name="Create key").click()
    page.get_by_role("dialog", name="Key of hub review").get_by_role("button", name="Done").click()
    expect(page.locator("#keys tbody tr", has_text="hub review")).to_contain_text("reviewer of ddh")
    expect(page.get_by_label("Platform")).to_be_hidden()


def test_a_name_in_use_is_reported_at_the_form(sign_in: Callable[[Role], Visit]) -> None:
    visited = sign_in(Role.ADMIN)
    page = visited.page
    page.goto("/ui/keys")
    page.get_by_label("Name").fill("the viewer")
    page.get_by_role("button", name="Create key").click()
    expect(page.get_by_role("alert").filter(has_text="there is a key named 'the viewer' already")).to_be_visible()
    visited.forgive("409")


def test_a_viewer_sees_lists_without_buttons(sign_in: Callable[[Role], Visit]) -> None:
    page = sign_in(Role.VIEWER).page
    for path in ("nodes", "tasks", "queues", "handlers", "workers", "schedules", "approvals", "review", "health"):
        page.goto(f"/ui/{path}")
        expect(page.locator("h1")).to_be_visible()
        expect(page.locator("[data-action]")).to_have_count(0)
    _expect_places(page, without=("Submit", "Keys"))


def test_an_operator_controls_jobs_but_not_keys(sign_in: Callable[[Role], Visit]) -> None:
    visited = sign_in(Role.OPERATOR)
    page = visited.page
    page.goto("/ui/workers")
    expect(page.get_by_role("button", name="Drain").first).to_be_visible()
    _expect_places(page, without=("Keys",))
    page.goto("/ui/keys")
    expect(page.get_by_role("heading", name="You don't have permission")).to_be_visible()
    visited.forgive("403")


def test_a_platform_reviewer_has_only_asset_pages(
    site: Site, visit: Callable[..., Visit], keys: dict[Role, str]
) -> None:
    body = {"name": "gis review", "role": "reviewer", "platform_id": "arcgis"}
    answer = site.client.post("/api/v1/keys", json=body, headers={"Authorization": f"Bearer {keys[Role.ADMIN]}"})
    visited = visit()
    page = visited.page
    page.goto("/ui/login")
    page.get_by_label("API key").fill(answer.raise_for_status().json()["key"])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/ui/review")
    expect(page.locator("#sidebar nav a")).to_have_text(["Review", "Assets", "Requests"])
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    page.keyboard.press("/")
    page.locator("#palette input").fill("greet")
    expect(page.locator("#palette-list")).to_have_text("No matches")
    page.keyboard.press("Escape")
    page.locator(".brand").click()
    page.wait_for_url("**/ui/review")
    page.goto("/ui/jobs")
    expect(page.get_by_role("heading", name="You don't have permission")).to_be_visible()
    visited.forgive("403")


def test_a_partner_is_refused_the_lists(sign_in: Callable[[Role], Visit]) -> None:
    visited = sign_in(Role.PARTNER)
    page = visited.page
    for path in ("nodes", "workers", "health"):
        page.goto(f"/ui/{path}")
        expect(page.get_by_role("heading", name="You don't have permission")).to_be_visible()
    visited.forgive("403")


def _expect_places(page: Page, without: tuple[str, ...]) -> None:
    for name in without:
        expect(page.locator("#sidebar nav").get_by_role("link", name=name, exact=True)).to_have_count(0)
