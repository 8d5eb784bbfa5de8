"""Signing in with a browser, and the content by role."""

from collections.abc import Callable

import pytest
from browsing import Site, Visit, accessibility_findings
from playwright.sync_api import Page, expect

ROLES = ("operator", "viewer", "reviewer", "partner", "worker")


@pytest.fixture(scope="module")
def keys(site: Site) -> dict[str, str]:
    """One key of each role; from now on every request needs one."""

    def make(name: str, role: str) -> str:
        answer = site.client.post("/api/v1/keys", json={"name": name, "role": role}, timeout=60)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["key"])

    admin = make("admin", "admin")
    site.client.headers["Authorization"] = f"Bearer {admin}"
    return {"admin": admin, **{role: make(role, role) for role in ROLES}, "leaving": make("leaving", "operator")}


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()


def test_a_user_signs_in_is_redirected_to_the_requested_page_and_signs_out(
    keys: dict[str, str], visit: Callable[..., Visit]
) -> None:
    seen = visit()
    page = seen.page
    page.goto("/ui/jobs?status=failed")
    expect(page).to_have_title("Sign in · dagmaster")
    expect(page.get_by_label("API key")).to_be_focused()
    sign_in(page, keys["operator"])
    page.wait_for_url("**/ui/jobs?status=failed")
    expect(page.locator(".who")).to_contain_text("operator")
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
    page.get_by_role("link", name="Sign out").click()
    page.goto("/ui/jobs")
    expect(page).to_have_title("Sign in · dagmaster")
    seen.forgive("401")  # The page may have refreshed just after its session ended.


def test_wrong_keys_and_worker_keys_are_refused(keys: dict[str, str], visit: Callable[..., Visit]) -> None:
    seen = visit()
    seen.page.goto("/ui/jobs")
    sign_in(seen.page, "dm_nonsense")
    expect(seen.page.get_by_role("alert")).to_contain_text("unknown, revoked or expired")
    sign_in(seen.page, keys["worker"])
    expect(seen.page.get_by_role("alert")).to_contain_text("This is a worker key")
    sign_in(seen.page, keys["viewer"])
    seen.page.wait_for_url("**/ui/jobs")
    seen.forgive("401")
    seen.forgive("403")


def test_a_viewer_has_no_action_buttons(keys: dict[str, str], site: Site, page: Page) -> None:
    site.run("greet")
    page.goto("/ui/jobs")
    sign_in(page, keys["viewer"])
    expect(page.locator("tbody tr").first).to_be_visible()
    expect(page.locator("[data-check]")).to_have_count(0)
    expect(page.get_by_role("navigation").get_by_role("link", name="Submit")).to_have_count(0)


def test_a_partner_sees_only_its_own_jobs(keys: dict[str, str], site: Site, page: Page) -> None:
    foreign = site.run("greet")
    page.goto("/ui/")
    sign_in(page, keys["partner"])
    page.wait_for_url("**/ui/jobs")
    expect(page.locator(f"#job-{foreign}")).to_have_count(0)
    page.goto("/ui/submit?workflow=greet")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url("**/ui/jobs/*")
    own = page.url.rpartition("/")[2]
    page.goto("/ui/jobs")
    expect(page.locator(f"#job-{own}")).to_be_visible()


def test_a_revoked_key_redirects_an_open_page_to_the_login(
    keys: dict[str, str], site: Site, visit: Callable[..., Visit], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagmaster.web.access.TRUST_SECONDS", 0.1)
    monkeypatch.setattr("dagmaster.web.ui.change_feed.BEAT_SECONDS", 0.2)
    seen = visit()
    seen.page.goto("/ui/jobs")
    sign_in(seen.page, keys["leaving"])
    expect(seen.page.locator("#live-state")).to_have_attribute("data-state", "live")
    assert site.client.delete("/api/v1/keys/leaving").is_success
    expect(seen.page).to_have_title("Sign in · dagmaster")
    assert seen.page.url.endswith("next=/ui/jobs")
    seen.forgive("401")


def test_the_login_is_accessible(keys: dict[str, str], visit: Callable[..., Visit]) -> None:
    page = visit(viewport={"width": 360, "height": 740}).page
    page.goto("/ui/login")
    assert accessibility_findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
