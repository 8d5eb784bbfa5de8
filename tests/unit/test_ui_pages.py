"""The order in which a page is assembled, and the style of templates."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from dagmaster import web
from dagmaster.web.access import visible_job
from dagmaster.web.ui import graphs, job, node, timeline, waits
from dagmaster.web.ui.pages import page_of

MODULES = (graphs, job, node, timeline, waits)
ROUTES = [route for module in MODULES for route in module.router.routes if isinstance(route, APIRoute)]


def solved(dependant: Dependant) -> Iterator[object]:
    """In FastAPI's order: the dependencies of a function, then the function itself."""
    for dependency in dependant.dependencies:
        yield from solved(dependency)
    yield dependant.call


@pytest.mark.parametrize("route", ROUTES, ids=[route.path for route in ROUTES])
def test_the_change_counter_of_a_page_is_read_before_its_job(route: APIRoute) -> None:
    """Otherwise a page may show an older state than its counter, and is not refreshed."""
    order = list(solved(route.dependant))
    if page_of in order and visible_job in order:
        assert order.index(page_of) < order.index(visible_job)


def test_job_pages_are_checked() -> None:
    orders = [list(solved(route.dependant)) for route in ROUTES]
    assert sum(page_of in order and visible_job in order for order in orders) >= 5


def test_template_lines_are_short() -> None:
    assert web.__file__
    templates = sorted((Path(web.__file__).parent / "templates").glob("*.html"))
    assert templates
    long = [
        f"{template.name}:{number}"
        for template in templates
        for number, line in enumerate(template.read_text().splitlines(), 1)
        if len(line) > 160
    ]
    assert long == []
