"""A whole installation and a real Chromium before it. No page may say an error or ask another host for anything."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from browsing import WORKFLOWS, Site, Visit, new_context
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright
from serving import server

expect.set_options(timeout=20_000)  # How long a busy machine may take; what is there ends the wait at once.


@pytest.fixture(scope="module")
def site(shared_dsn: str) -> Iterator[Site]:
    """All the workflows of tests/browser/workflows, the basic handlers, one worker."""
    with server(shared_dsn, WORKFLOWS) as running, closing(Site(running, shared_dsn)) as site:
        yield site


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    """For a module, not for longer: its loop would be in the way of tests that run one."""
    with sync_playwright() as playing:
        yield playing


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert path, "the pages are tested in Chromium, and there is none; on Debian: apt-get install chromium"
    opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
    yield opened
    opened.close()


@pytest.fixture
def visit(browser: Browser, site: Site) -> Iterator[Callable[..., Visit]]:
    """Opens a browser of its own, with options of Playwright's `new_context`, such as a viewport."""
    opened: list[Visit] = []

    def open_one(**options: Any) -> Visit:
        opened.append(Visit(new_context(browser, site, **options), site))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()
        one.context.close()


@pytest.fixture(scope="module")
def desktop(browser: Browser, site: Site) -> Iterator[BrowserContext]:
    """Loads scripts and styles once for all the pages of a module."""
    context = new_context(browser, site)
    yield context
    context.close()


@pytest.fixture
def page(desktop: BrowserContext, site: Site) -> Iterator[Page]:
    """A page of a desktop browser that remembers nothing. At the end nothing may have been complained of."""
    one = Visit(desktop, site)
    yield one.page
    if one.page.url.startswith(site.url):
        one.page.evaluate("localStorage.clear()")
    desktop.clear_cookies()
    one.close()
