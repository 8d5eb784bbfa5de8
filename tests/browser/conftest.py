"""A whole installation and a real Chromium before it. No page may say an error or ask another host for anything."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from browsing import WORKFLOWS, Site, Tab, Visit, new_context
from playwright.sync_api import Browser, Page, Playwright, expect, sync_playwright
from serving import server

expect.set_options(timeout=45_000)  # How long a busy machine may take; what is there ends the wait at once.


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


@pytest.fixture(scope="module")
def tab(browser: Browser, site: Site) -> Tab:
    """Loads scripts and styles once for all the pages of a module, in one process."""
    return Tab(browser, site)


@pytest.fixture
def leave(tab: Tab, request: pytest.FixtureRequest) -> Callable[[Visit], None]:
    failures = request.session.testsfailed
    return lambda visit: tab.leave(visit, is_usable=request.session.testsfailed == failures)


@pytest.fixture
def visit(browser: Browser, site: Site, tab: Tab, leave: Callable[[Visit], None]) -> Iterator[Callable[..., Visit]]:
    """Opens a page, with options of Playwright's `new_context`; what changes more than its size has a browser alone."""
    opened: list[Visit] = []

    def open_one(*, is_alone: bool = False, **options: Any) -> Visit:
        if is_alone or tab.is_taken or options.keys() - {"viewport"}:
            opened.append(Visit(new_context(browser, site, **options), site))
        else:
            opened.append(tab.take(**options))
        return opened[-1]

    yield open_one
    for one in opened:
        if one.is_shared:
            leave(one)
        else:
            one.close()
            one.context.close()


@pytest.fixture
def page(tab: Tab, leave: Callable[[Visit], None]) -> Iterator[Page]:
    """A page of a desktop browser that remembers nothing. At the end nothing may have been complained of."""
    one = tab.take()
    yield one.page
    leave(one)
