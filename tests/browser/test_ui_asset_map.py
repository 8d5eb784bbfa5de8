"""The map of an asset in a browser: versions are drawn and compared and show their values."""

import asyncio
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import pytest
from asset_rows import add_asset, add_version
from browsing import WORKFLOWS, Site, Visit, accessibility_findings
from playwright.sync_api import Page, expect
from pyogrio.raw import read_arrow, write_arrow
from rasters import DEM, RGB
from serving import server
from vectors import COUNTIES

COLORADO_BOX = [-109.06, 36.99, -102.04, 41.01]
DEM_BOX = [-105.9125, 40.1591, -105.4945, 40.5537]


@pytest.fixture(scope="module")
def site(shared_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """An elevation model with two versions, the second of which is an unapproved image."""
    silver = tmp_path_factory.mktemp("silver")
    for source in (DEM, RGB):
        (silver / source.name).write_bytes(source.read_bytes())
    write_counties(silver / "counties.pmtiles")
    with ThreadPoolExecutor() as threads:  # This thread may run the browser's event loop.
        threads.submit(lambda: asyncio.run(add_data(shared_dsn))).result()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGMASTER_STORAGE_SILVER", str(silver))
        with server(shared_dsn, WORKFLOWS, works=False) as running, closing(Site(running, shared_dsn)) as site:
            yield site


def write_counties(target: Path) -> None:
    meta, table = read_arrow(COUNTIES)
    options = {"geometry_name": meta["geometry_name"] or "wkb_geometry", "geometry_type": "Unknown", "crs": meta["crs"]}
    write_arrow(table, target, driver="PMTiles", layer="features", dataset_options={"MAXZOOM": "6"}, **options)


async def add_data(dsn: str) -> None:
    await add_asset(dsn, "park", data_type="raster", blob_path=f"silver/{DEM.name}", bbox=DEM_BOX)
    await add_version(dsn, "park", 1, is_approved=False, blob_path=f"silver/{RGB.name}", bbox=DEM_BOX)
    await add_asset(dsn, "counties", blob_path="silver/counties.parquet", bbox=COLORADO_BOX)
    await add_asset(dsn, "gone", data_type="raster", blob_path="silver/gone.tif", bbox=DEM_BOX)


def wait_until_drawn(page: Page, state: str = "ready") -> None:
    expect(page.locator("[data-asset-map]")).to_have_attribute("data-state", state)


def test_a_version_is_drawn_with_its_legend_and_shows_the_value_at_a_point(page: Page) -> None:
    with page.expect_response(re.compile(r"/tiles/WebMercatorQuad/.*colormap_name=viridis&rescale=")):
        page.goto("/ui/assets/park/map?version=0")
    wait_until_drawn(page)
    legend = page.locator("[data-legend]")
    expect(legend).to_contain_text("Band 1")
    expect(legend.locator("[data-legend-colours] i")).to_have_count(9)
    page.get_by_label("Colours").select_option("terrain")
    wait_until_drawn(page)
    expect(legend.locator("[data-legend-colours] i").first).to_have_css("background-color", "rgb(51, 51, 153)")
    page.locator("[data-canvas=version] canvas").click()
    values = page.locator("[data-point]")
    expect(values).to_contain_text("At 40.")
    expect(values.get_by_role("cell", name="b1")).to_be_visible()
    page.get_by_label("Opacity").fill("40")


def test_two_versions_can_be_compared_with_a_swipe(page: Page) -> None:
    page.goto("/ui/assets/park/map?version=0")
    wait_until_drawn(page)
    expect(page.get_by_label("Swipe")).to_be_hidden()
    page.get_by_label("Compare with").select_option(label="Version 1, not approved")
    wait_until_drawn(page)
    expect(page).to_have_url(re.compile(r"\?version=0&compare=1$"))
    compared = page.locator("[data-canvas=compare]")
    expect(compared).to_have_css("clip-path", "inset(0px 0px 0px 50%)")
    page.get_by_label("Swipe").fill("20")
    expect(compared).to_have_css("clip-path", "inset(0px 0px 0px 20%)")
    page.locator("[data-canvas=version] canvas").focus()
    page.keyboard.press("Enter")
    expect(page.locator("[data-point]").get_by_role("cell", name="b3")).to_be_visible()
    expect(page.locator("[data-point] th", has_text="Version")).to_have_count(2)
    assert accessibility_findings(page) == []


def test_features_are_drawn_and_show_their_attributes(page: Page) -> None:
    page.goto("/ui/assets/counties/map")
    wait_until_drawn(page)
    expect(page.locator("[data-legend]")).to_be_hidden()
    page.locator("[data-canvas=version] canvas").click()
    expect(page.locator("[data-point]").get_by_role("cell", name="state_name", exact=True)).to_be_visible()
    page.get_by_label("Colour by").select_option("aland")
    expect(page.locator("[data-legend-title]")).to_have_text("aland")
    expect(page.locator("[data-legend-high]")).not_to_have_text("")
    page.wait_for_url("**attribute=aland")
    page.reload()
    wait_until_drawn(page)
    expect(page.locator("[data-legend-title]")).to_have_text("aland")
    expect(page.locator(".version")).to_have_text(version("dagmaster"))


def test_the_map_fits_a_small_screen(visit: Callable[..., Visit]) -> None:
    page = visit(viewport={"width": 390, "height": 844}).page
    page.goto("/ui/assets/park")
    page.get_by_role("link", name="Map").first.click()
    wait_until_drawn(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_unreadable_data_shows_an_error(visit: Callable[..., Visit]) -> None:
    opened = visit(is_alone=True)
    opened.page.goto("/ui/assets/gone/map")
    wait_until_drawn(opened.page, "failed")
    expect(opened.page.get_by_role("alert").filter(has_text="there is no file")).to_be_visible()
    opened.forgive("404")
