"""The map of shapes in inputs and outputs, on its own page."""

import re
from collections.abc import Callable
from typing import Any

from browsing import Visit, accessibility_findings
from playwright.sync_api import Page, expect

from dagmaster.model.shapes import shapes_of
from dagmaster.web.ui.headers import POLICY
from dagmaster.web.ui.pages import TEMPLATES

PAGE = TEMPLATES.from_string(
    '{% from "map.html" import map_panel, map_scripts %}<!doctype html><html lang="en" data-theme="light"><head>'
    '<meta charset="utf-8"><title>Map</title><link rel="stylesheet" href="/ui/static/app.css">'
    '<link rel="stylesheet" href="/ui/static/map.css">{{ map_scripts() }}</head>'
    "<body><main><h1>Map</h1>{{ map_panel(shapes) }}</main></body></html>"
)
SEVERAL = {
    "area": {"bbox": [5, 47, 15, 55]},
    "scene": {"type": "Polygon", "coordinates": [[[10, 40], [14, 41], [13, 44], [9, 43], [10, 40]]]},
    "at": {"lon": 8, "lat": 50},
}


def show(page: Page, value: Any) -> None:
    page.route(
        "**/ui/a-map",
        lambda route: route.fulfill(
            body=PAGE.render(shapes=shapes_of(value, "inputs")),
            headers={"Content-Security-Policy": POLICY, "Content-Type": "text/html"},
        ),
    )
    page.goto("/ui/a-map")


def test_shapes_are_drawn_on_coastlines_and_described_in_words(page: Page) -> None:
    show(page, SEVERAL)
    expect(page.locator(".map-shape")).to_have_count(2)
    expect(page.locator(".map-dot")).to_have_count(1)
    assert len(page.locator(".map-land").first.get_attribute("d") or "") > 1000
    words = page.get_by_role("list", name="Shapes on the map")
    expect(words).to_contain_text("inputs.area.bbox")
    expect(words).to_contain_text("5° E to 15° E, 47° N to 55° N")
    expect(page.locator(".map-grid text").filter(has_text="50° N")).to_have_count(1)
    assert accessibility_findings(page) == []


def test_the_map_can_be_zoomed_and_moved_by_buttons_and_keys(visit: Callable[..., Visit]) -> None:
    page = visit(reduced_motion="reduce").page
    show(page, SEVERAL)
    moved = page.locator(".map-canvas svg > g").first
    expect(moved).to_have_attribute("transform", re.compile("translate"))
    seen = [moved.get_attribute("transform")]
    for act in (
        lambda: page.get_by_role("button", name="Zoom in").click(),
        lambda: page.locator(".map-canvas").press("ArrowLeft"),
        lambda: page.locator(".map-canvas").press("-"),
        lambda: page.get_by_role("button", name="inputs.scene").click(),
    ):
        act()
        expect(moved).not_to_have_attribute("transform", seen[-1] or "")
        seen.append(moved.get_attribute("transform"))
    expect(page.locator(".map-shape.is-chosen")).to_have_count(1)
    page.get_by_role("button", name="Show all shapes").click()
    expect(moved).to_have_attribute("transform", seen[0] or "")


def test_a_box_across_the_antimeridian_is_drawn_once_and_whole(page: Page) -> None:
    show(page, {"bbox": [170, -20, -170, -10]})
    box = page.locator(".map-shape").bounding_box()
    frame = page.locator(".map-canvas").bounding_box()
    assert box and frame
    assert frame["x"] < box["x"] and box["x"] + box["width"] < frame["x"] + frame["width"]
    assert 1.9 < box["width"] / box["height"] < 2.1
    expect(page.locator(".map-grid text").filter(has_text="175° W")).to_have_count(1)


def test_the_map_fits_a_small_screen(visit: Callable[..., Visit]) -> None:
    page = visit(viewport={"width": 360, "height": 740}).page
    show(page, SEVERAL)
    expect(page.locator(".map-shape")).to_have_count(2)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
