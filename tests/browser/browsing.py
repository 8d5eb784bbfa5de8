"""Helpers of the browser tests: the server, a browser page, and the findings of axe-core."""

import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import psycopg
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, ViewportSize, sync_playwright
from serving import Server

FOLDER = Path(__file__).parent
WORKFLOWS = FOLDER / "workflows"
AXE = (FOLDER / "vendor" / "axe.min.js").read_text()
THEMES: Final = ("light", "dark")
# The second theme has other colours and the same elements.
RULES: Final = {
    "light": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "dark": ["color-contrast", "link-in-text-block"],
}
DESKTOP: ViewportSize = {"width": 1440, "height": 900}
BROWSERS: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
EMPTY_PAGE = "/ui/static/theme.js"  # On the same server, so that the browser keeps its process.
SOON = 60.0


class Site:
    """The server of a module, called directly where that is quicker than through the browser."""

    def __init__(self, running: Server, dsn: str) -> None:
        self.server, self.dsn, self.url = running, dsn, running.url
        self.client = httpx.Client(base_url=running.url, timeout=60)

    def submit(self, workflow_id: str, **inputs: Any) -> str:
        answer = self.client.post("/api/v1/jobs", json={"workflow_id": workflow_id, "input_params": inputs})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["job_id"])

    def job(self, job_id: str) -> dict[str, Any]:
        job: dict[str, Any] = self.client.get(f"/api/v1/jobs/{job_id}").raise_for_status().json()
        return job

    def until(self, job_id: str, *statuses: str) -> dict[str, Any]:
        """Wait until the job has one of these statuses."""
        deadline = time.monotonic() + SOON
        while (job := self.job(job_id))["status"] not in statuses:
            assert time.monotonic() < deadline, f"{job['status']}: {job['error_message']}"
            time.sleep(0.05)
        return job

    def run(self, workflow_id: str, **inputs: Any) -> str:
        """Submit a job and wait until it has ended."""
        job_id = self.submit(workflow_id, **inputs)
        self.until(job_id, "completed", "failed", "cancelled")
        return job_id

    def close(self) -> None:
        self.client.close()

    def execute(self, statement: str, *values: Any) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(statement, values)


class Chromium:
    """Started once for consecutive modules: a start takes as long as several tests."""

    def __init__(self) -> None:
        self._running = ExitStack()
        self._browser: Browser | None = None

    def opened(self) -> Browser:
        if self._browser is None or not self._browser.is_connected():
            self.close()
            path = next(filter(None, map(shutil.which, BROWSERS)), None)
            assert path, f"there is no Chromium to test the pages in; on Debian: apt-get install {BROWSERS[0]}"
            playwright = self._running.enter_context(sync_playwright())
            arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
            self._browser = playwright.chromium.launch(executable_path=path, args=arguments)
            self._running.callback(self._browser.close)
        return self._browser

    def close(self) -> None:
        self._browser = None
        self._running.close()


class Visit:
    """A browser page and the errors that it logged."""

    def __init__(self, context: BrowserContext, site: Site, *, is_shared: bool = False) -> None:
        self.context, self.is_shared = context, is_shared
        self.complaints: list[str] = []
        self._forgiven: list[str] = []
        self._host = urlsplit(site.url).netloc
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(45_000)
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self._note(f"script: {error}"))
        self.page.on("request", self._check_host)

    def _hear(self, message: ConsoleMessage) -> None:
        # Browsers request this icon if a page names none; `visit` checks that every page does.
        if message.type == "error" and not (self.is_shared and message.location["url"].endswith("/favicon.ico")):
            self._note(f"console: {message.text} ({message.location['url']})")

    def _note(self, text: str) -> None:
        if not any(fragment in text for fragment in self._forgiven):
            self.complaints.append(text)

    def _check_host(self, request: Any) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob") and address.netloc != self._host:
            self._note(f"another host was asked: {request.url}")

    def forgive(self, fragment: str) -> None:
        """Ignore an error that the test causes on purpose, also if the browser logs it later."""
        self._forgiven.append(fragment)
        self.complaints = [complaint for complaint in self.complaints if fragment not in complaint]

    def take_complaints(self) -> list[str]:
        """The errors since the last call; errors that were forgiven until now no longer are."""
        complaints, self.complaints = self.complaints, []
        self._forgiven.clear()
        return complaints

    def close(self) -> None:
        self.page.close()
        assert not self.complaints, "\n".join(self.complaints)


class Tab:
    """A page reused by consecutive tests: a new one takes longer than most tests."""

    def __init__(self, browser: Browser, site: Site) -> None:
        self._browser, self._site = browser, site
        self._visit: Visit | None = None
        self.is_taken = False

    def take(self, viewport: ViewportSize = DESKTOP) -> Visit:
        self.is_taken = True
        if self._visit is None:
            self._visit = Visit(new_context(self._browser, self._site), self._site, is_shared=True)
        if self._visit.page.viewport_size != viewport:
            self._visit.page.set_viewport_size(viewport)
        return self._visit

    def leave(self, visit: Visit, *, is_usable: bool) -> None:
        """Reset everything; close a browser that a test left in an unusual state."""
        self.is_taken, self._visit = False, None
        if not is_usable:
            visit.context.close()
            return
        page = visit.page
        page.unroute_all()
        page.goto(EMPTY_PAGE)  # First, because a live page would notice that it is signed out.
        visit.context.clear_cookies()
        page.evaluate("() => { localStorage.clear(); sessionStorage.clear() }")
        page.emulate_media(color_scheme="null")
        self._visit = visit
        complaints = visit.take_complaints()
        assert not complaints, "\n".join(complaints)

    def close(self) -> None:
        if self._visit is not None:
            self._visit.context.close()


def new_context(browser: Browser, site: Site, **options: Any) -> BrowserContext:
    """With options of Playwright, such as a viewport."""
    context = browser.new_context(base_url=site.url, **{"viewport": DESKTOP, **options})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    return context


def accessibility_findings(page: Page) -> list[str]:
    """The serious and critical findings of axe-core in both themes, with their elements."""
    # As an isolated script: the page's policy allows only its own.
    page.evaluate(AXE)
    findings = []
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)
        page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        findings += [f"{theme}: {finding}" for finding in _examine(page, RULES[theme])]
    return findings


def _examine(page: Page, rules: list[str]) -> list[str]:
    violations = page.evaluate(
        "async (runOnly) => (await axe.run(document, {resultTypes: ['violations'], runOnly})).violations", rules
    )
    return [
        f"{violation['id']} ({violation['impact']}): {node['target']} {node['failureSummary']}"
        for violation in violations
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
