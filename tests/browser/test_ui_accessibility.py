"""Every page is accessible without sight or mouse, and fits a phone; its links lead somewhere."""

import re
from html import unescape

import pytest
from browsing import Site, accessibility_findings
from playwright.sync_api import Page, ViewportSize, expect

PAGES = (
    "/ui/",
    "/ui/jobs",
    "/ui/jobs/{done}",
    "/ui/jobs/{done}?tab=gantt",
    "/ui/jobs/{done}?tab=timeline",
    "/ui/jobs/{done}?tab=data",
    "/ui/jobs/{done}?tab=related",
    "/ui/jobs/{failed}",
    "/ui/jobs/{asking}",
    "/ui/jobs/{done}/timeline",
    "/ui/jobs/{done}/nodes/say",
    "/ui/workflows",
    "/ui/workflows/greet",
    "/ui/submit",
    "/ui/submit?workflow=greet",
    "/ui/schedules",
    "/ui/approvals",
    "/ui/review",
    "/ui/assets",
    "/ui/assets/{asset}",
    "/ui/assets/{asset}?tab=history",
    "/ui/requests",
    "/ui/nodes",
    "/ui/tasks",
    "/ui/queues",
    "/ui/handlers",
    "/ui/workers",
    "/ui/health",
    "/ui/keys",
)
NARROW: ViewportSize = {"width": 360, "height": 780}
LAPTOP: ViewportSize = {"width": 1280, "height": 800}


@pytest.fixture(scope="module")
def jobs(site: Site) -> dict[str, str]:
    """One of them waits for approval, after a skipped branch and a failed item."""
    asking = site.submit("forks")
    site.client.post(f"/api/v1/jobs/{asking}/signals/go").raise_for_status()
    return {
        "asking": asking,
        "done": site.run("greet", name="everywhere"),
        "failed": site.run("fails"),
        "asset": _asset(site),
    }


def _asset(site: Site) -> str:
    """An asset with a deleted version and one that waits for review, on the map."""
    body = {
        "workflow_id": "greet",
        "platform_id": "arcgis",
        "platform_refs": {"item_id": "b4a1c9d2e3f4455696a7b8c9d0e1f2a3"},
        "data_type": "raster",
    }
    first = site.client.post("/api/v1/submit", json=body).raise_for_status().json()
    site.until(first["job_id"], "completed")
    site.client.delete(f"/api/v1/assets/{first['asset_id']}/versions/0").raise_for_status()
    second = site.client.post("/api/v1/submit", json={**body, "version_label": "second"}).raise_for_status().json()
    site.until(second["job_id"], "completed")
    outputs = "blob_path = 'silver/b4a1c9d2e3f4455696a7b8c9d0e1f2a3/2026-11-17/second.tif', bbox = '{5, 47, 15, 55}'"
    site.execute(f"UPDATE dagapp.asset_versions SET {outputs} WHERE version_ordinal = 1")
    return str(first["asset_id"])


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_accessible_and_fits_a_phone(site: Site, jobs: dict[str, str], page: Page, path: str) -> None:
    _open(page, path.format(**jobs))
    assert accessibility_findings(page) == []
    files = page.evaluate("performance.getEntriesByType('resource').map((one) => one.name)")
    assert [file for file in files if "/ui/static/" in file and "/ui/static/v-" not in file] == []
    page.set_viewport_size(LAPTOP)
    cut = page.evaluate("[...document.querySelectorAll('.card.flush')].map((one) => one.scrollWidth - one.clientWidth)")
    assert all(beyond <= 0 for beyond in cut), f"a table is cut by {max(cut)} px"
    page.set_viewport_size(NARROW)
    beyond = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert beyond <= 0, f"{beyond} px too wide"


def test_every_link_leads_to_a_page(site: Site, jobs: dict[str, str]) -> None:
    linked_from: dict[str, str] = {}
    for path in PAGES:
        html = site.client.get(path.format(**jobs)).raise_for_status().text
        links = re.findall(r'<a [^>]*href="(/ui/[^"#]*)', html)
        linked_from |= {unescape(link): path for link in links if link != "/ui/logout"}
    assert len(linked_from) > 50
    broken = {link: path for link, path in linked_from.items() if site.client.get(link).status_code != 200}
    assert broken == {}


def _open(page: Page, path: str) -> None:
    answer = page.goto(path)
    assert answer is not None
    assert answer.status == 200
    expect(page.locator("main h1, header h1").first).to_be_visible()
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
