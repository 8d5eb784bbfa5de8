"""Assets in a browser: reviewed, cleared, reprocessed, deleted, and found by reference and request."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest
from asset_site import UNREADABLE, AssetSite, asset_site
from browsing import Visit
from playwright.sync_api import Locator, Page, expect

NUMBERS = count(1)


@pytest.fixture(scope="module")
def site(shared_dsn: str) -> Iterator[AssetSite]:
    with asset_site(shared_dsn) as site:
        yield site


@pytest.fixture
def dataset() -> str:
    """A dataset that no other test uses."""
    return f"data-{next(NUMBERS)}"


@pytest.fixture
def asset_id(site: AssetSite, dataset: str) -> str:
    """An asset with one version, which waits for review."""
    return str(site.submit_version(dataset, version_label="spring")["asset_id"])


def dialog(page: Page) -> Locator:
    return page.locator("#decide")


def agree(page: Page) -> None:
    dialog(page).locator("[data-decide-yes]").click()


def test_a_version_can_be_approved_and_cleared_in_one_step(site: AssetSite, page: Page, asset_id: str) -> None:
    page.goto("/ui/review")
    waiting = page.locator(f"#review-{asset_id}")
    expect(waiting).to_contain_text("not cleared")
    waiting.get_by_role("button", name="Approve").click()
    expect(dialog(page)).to_contain_text("choose who can see it")
    expect(dialog(page).get_by_text("The data becomes public")).to_be_hidden()
    dialog(page).get_by_label("Clearance").select_option("public")
    expect(dialog(page).get_by_text("The data becomes public")).to_be_visible()
    dialog(page).get_by_label("Clearance").select_option("ouo")
    dialog(page).get_by_label("Comment").fill("fine at all scales")
    agree(page)
    expect(page.locator("#toasts")).to_contain_text("Approved version 0")
    expect(waiting).to_have_count(0)
    asset = site.asset(asset_id)
    assert (asset["clearance_state"], asset["latest_approved_version_ordinal"]) == ("ouo", 0)
    assert asset["versions"][0]["approval_reason"] == "fine at all scales"


def test_a_rejection_requires_a_reason_and_the_version_can_be_resubmitted(
    site: AssetSite, page: Page, asset_id: str
) -> None:
    page.goto("/ui/review")
    page.locator(f"#review-{asset_id}").get_by_role("button", name="Reject").click()
    agree(page)
    expect(dialog(page)).to_be_visible()
    assert site.asset(asset_id)["versions"][0]["approval_state"] == "pending_review"
    dialog(page).get_by_label("Reason").fill("shifted by half a pixel")
    agree(page)
    expect(page.locator(f"#review-{asset_id}")).to_have_count(0)
    page.goto(f"/ui/assets/{asset_id}")
    version = page.locator("#version-0")
    expect(version).to_contain_text("rejected")
    expect(version).to_contain_text("“shifted by half a pixel”")
    expect(version.get_by_role("button", name="Approve")).to_have_count(0)
    version.get_by_role("button", name="Resubmit").click()
    agree(page)
    expect(version).to_contain_text("revision 2")
    expect(version.get_by_role("button", name="Approve")).to_be_visible()


def test_a_refused_decision_shows_why(site: AssetSite, visit: Callable[..., Visit], asset_id: str) -> None:
    visited = visit()
    page = visited.page
    page.goto(f"/ui/assets/{asset_id}")
    page.get_by_role("button", name="Approve").click()
    site.client.post(f"/api/v1/assets/{asset_id}/reject", json={"reason": "blurred"}).raise_for_status()
    agree(page)
    expect(dialog(page).get_by_role("alert")).to_contain_text("version 0 is rejected")
    visited.forgive("409")
    dialog(page).get_by_role("button", name="Close").click()
    # A decision of another reviewer appears without a reload.
    expect(page.locator("#version-0")).to_contain_text("“blurred”")


def test_publishing_an_asset_shows_a_warning_and_what_was_not_done(site: AssetSite, page: Page, asset_id: str) -> None:
    site.client.post(f"/api/v1/assets/{asset_id}/approve", json={"clearance_level": "ouo"}).raise_for_status()
    page.goto(f"/ui/assets/{asset_id}")
    head = page.locator("#asset-head")
    expect(head).to_contain_text("official use only")
    expect(head.get_by_role("button", name="Clear", exact=True)).to_have_count(0)
    head.get_by_role("button", name="Make public").click()
    expect(dialog(page)).to_contain_text("The data becomes public")
    agree(page)
    expect(head).to_contain_text("Made public")
    expect(page.locator("#decision-warnings")).to_contain_text("the version was not exported")
    head.get_by_role("button", name="Expose all versions").click()
    agree(page)
    expect(head.get_by_role("button", name="Expose latest only")).to_be_visible()
    assert site.asset(asset_id)["exposure_mode"] == "all_versions"


def test_a_version_shows_its_outputs_its_extent_and_its_job(site: AssetSite, page: Page, asset_id: str) -> None:
    page.goto(f"/ui/assets/{asset_id}")
    version = page.locator("#version-0")
    version.get_by_role("button", name="Copy blob_path of version 0").click()
    expect(page.locator("#toasts")).to_contain_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "silver/ddh/scene.tif"
    expect(page.locator(".map-shape")).to_have_count(1)
    expect(page.get_by_role("list", name="Shapes on the map")).to_contain_text("5.8° E to 15.1° E")
    version.locator("a[href^='/ui/jobs/']").click()
    page.get_by_role("link", name=asset_id).click()
    page.wait_for_url(f"**/ui/assets/{asset_id}#version-0")
    page.get_by_role("link", name="History").click()
    expect(page.locator("#history li").first).to_contain_text("Processing of version 0 completed")


def test_a_failed_version_can_be_reprocessed_or_deleted(site: AssetSite, page: Page, dataset: str) -> None:
    asset_id = site.submit_version(dataset, source=UNREADABLE)["asset_id"]
    page.goto(f"/ui/assets/{asset_id}")
    version = page.locator("#version-0")
    expect(version).to_contain_text("the file is not a raster")
    version.get_by_role("button", name="Reprocess").click()
    agree(page)
    expect(version).to_contain_text("revision 2")
    version.get_by_role("button", name="Delete version").click()
    dialog(page).get_by_label("Reason").fill("the wrong file")
    agree(page)
    expect(version.locator("header")).to_contain_text("deleted")
    expect(version.get_by_role("button", name="Delete version")).to_have_count(0)
    site.execute(
        "INSERT INTO dagapp.layer_metadata (asset_id, data_type, display_name, is_external) "
        "VALUES (%s, 'raster', '', true)",
        asset_id,
    )
    page.get_by_role("button", name="Delete asset").click()
    agree(page)
    page.wait_for_url("**/ui/assets", wait_until="commit")  # The toasts disappear a few seconds later.
    expect(page.locator("#toasts")).to_contain_text("Asset deleted")
    expect(page.locator("#toasts")).to_contain_text("The published layer is not up to date")
    expect(page.locator(f"#asset-{asset_id}")).to_have_count(0)
    history = site.client.get(f"/api/v1/assets/{asset_id}/history?include_deleted=true").json()["items"]
    assert ("version_deleted", "the wrong file") in [(event["event_type"], event["reason"]) for event in history]


def test_search_finds_assets_and_requests_while_typing(site: AssetSite, page: Page, dataset: str) -> None:
    submitted = site.submit_version(dataset, request_id=f"partner-{dataset}")
    page.goto("/ui/assets")
    row = page.locator(f"#asset-{submitted['asset_id']}")
    expect(row).to_contain_text("pending review")
    page.get_by_label("Reference").fill(f"dataset_id={dataset}")
    expect(page.locator("#assets tbody tr")).to_have_count(1)
    expect(row).to_be_visible()
    page.get_by_label("Approval").select_option("approved")
    expect(page.get_by_text("No matching assets")).to_be_visible()
    page.goto("/ui/requests")
    page.get_by_role("searchbox", name="Request ID").fill(f"partner-{dataset}")
    expect(page.locator("#requests tbody tr")).to_have_count(1)
    page.locator("#requests").get_by_role("link", name="ddh, version 0").click()
    expect(page.locator("#version-0")).to_be_visible()
