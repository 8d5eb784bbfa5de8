"""What holds for every page: people who see little or use no mouse can use it, and it fits on a telephone."""

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
    """One of them needs approval, after a branch was skipped and an item failed."""
    asking = site.submit("forks")
    site.client.post(f"/api/v1/jobs/{asking}/signals/go").raise_for_status()
    return {"asking": asking, "done": site.run("greet", name="everywhere"), "failed": site.run("fails")}


@pytest.mark.parametrize("path", PAGES)
def test_a_page_can_be_used_by_everybody_and_fits_on_a_telephone(
    site: Site, jobs: dict[str, str], page: Page, path: str
) -> None:
    _open(page, path.format(**jobs))
    assert accessibility_findings(page) == []
    files = page.evaluate("performance.getEntriesByType('resource').map((one) => one.name)")
    assert [one for one in files if "/ui/static/" in one and "/ui/static/v-" not in one] == []
    page.set_viewport_size(LAPTOP)
    cut = page.evaluate("[...document.querySelectorAll('.card.flush')].map((one) => one.scrollWidth - one.clientWidth)")
    assert all(beyond <= 0 for beyond in cut), f"a table is cut by {max(cut)} px"
    page.set_viewport_size(NARROW)
    beyond = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert beyond <= 0, f"{beyond} px too wide"


def _open(page: Page, path: str) -> None:
    answer = page.goto(path)
    assert answer is not None
    assert answer.status == 200
    expect(page.locator("main h1, header h1").first).to_be_visible()
    expect(page.locator("#live-state")).to_have_attribute("data-state", "live")
