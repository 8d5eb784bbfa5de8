"""A whole installation and a real Chromium. No page may log an error or send a request to another host."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from browsing import WORKFLOWS, Chromium, Site, Tab, Visit, new_context
from playwright.sync_api import Browser, Page, expect
from serving import server

chromium = Chromium()
expect.set_options(timeout=45_000)  # The limit for a busy machine; a wait ends as soon as its condition holds.


@pytest.fixture(scope="module")
def site(shared_dsn: str) -> Iterator[Site]:
    """All the workflows of tests/browser/workflows, the basic handlers, one worker."""
    with server(shared_dsn, WORKFLOWS) as running, closing(Site(running, shared_dsn)) as site:
        yield site


@pytest.fixture(scope="module")
def browser() -> Browser:
    return chromium.opened()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Close Chromium after the last consecutive browser test: Playwright's event loop would disturb other tests."""
    try:
        yield
    finally:
        if nextitem is None or nextitem.path.parent != item.path.parent:
            chromium.close()


@pytest.fixture(scope="module")
def tab(browser: Browser, site: Site) -> Iterator[Tab]:
    """Load scripts and styles once for all pages of a module, in one process."""
    with closing(Tab(browser, site)) as tab:
        yield tab


@pytest.fixture
def leave(tab: Tab, request: pytest.FixtureRequest) -> Callable[[Visit], None]:
    failures = request.session.testsfailed
    return lambda visit: tab.leave(visit, is_usable=request.session.testsfailed == failures)


@pytest.fixture
def visit(browser: Browser, site: Site, tab: Tab, leave: Callable[[Visit], None]) -> Iterator[Callable[..., Visit]]:
    """Open a page with options of Playwright's `new_context`; options other than its size get a separate browser."""
    opened: list[Visit] = []

    def open_one(*, is_alone: bool = False, **options: Any) -> Visit:
        if is_alone or tab.is_taken or options.keys() - {"viewport"}:
            opened.append(Visit(new_context(browser, site, **options), site))
        else:
            opened.append(tab.take(**options))
        return opened[-1]

    yield open_one
    for opened_visit in opened:
        if opened_visit.is_shared:
            leave(opened_visit)
        else:
            opened_visit.close()
            opened_visit.context.close()


@pytest.fixture
def page(tab: Tab, leave: Callable[[Visit], None]) -> Iterator[Page]:
    """A desktop browser page without stored state. No error may be logged by the end."""
    taken = tab.take()
    yield taken.page
    leave(taken)
