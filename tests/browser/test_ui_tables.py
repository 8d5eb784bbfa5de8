"""Tables of Python tasks in a browser: list, rows, lineage and queries."""

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import pytest
from browsing import WORKFLOWS, Site, accessibility_findings
from playwright.sync_api import Page, ViewportSize, expect
from serving import server

from dagmaster.data import aggregates, col
from dagmaster.data.engine import folder_url
from dagmaster.python.data_context import DataContext

NARROW: ViewportSize = {"width": 390, "height": 780}
ROWS = 300


@dataclass(frozen=True)
class Tables:
    sales: str
    totals: str


@pytest.fixture(scope="module")
def site(shared_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site with its own data service."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGMASTER_DATABASE_URL", shared_dsn)
        patch.setenv("DAGMASTER_DATA_URL", folder_url(tmp_path_factory.mktemp("tables"), "service"))
        with server(shared_dsn, WORKFLOWS) as running, closing(Site(running, shared_dsn)) as site:
            yield site


@pytest.fixture(scope="module")
def tables(site: Site) -> Tables:
    with ThreadPoolExecutor(1) as thread:  # The browser has an event loop in this thread.
        made = thread.submit(asyncio.run, make_tables()).result()
    job_id = site.run("greet")
    site.execute(
        "UPDATE dagapp.data_objects SET scope = 'job', job_id = %s, task_id = %s WHERE object_id = %s",
        int(job_id),
        f"{job_id}_say_0",
        int(made.totals),
    )
    return made


async def make_tables() -> Tables:
    async with DataContext(scope="global") as context:
        sales = await context.create_object_from_value(
            {"shop": ["north", "south", None] * (ROWS // 3), "units": list(range(ROWS))}, name="sales"
        )
        by_shop = sales.with_columns(price=col("units") * 2.5).group_by("shop").agg(revenue=aggregates.sum("price"))
        totals = await by_shop.materialize(name="totals")
        return Tables(str(sales.table_id), str(totals.table_id))


def test_a_table_can_be_found_and_shows_its_rows(site: Site, tables: Tables, page: Page) -> None:
    page.goto("/ui/tables")
    expect(page.locator(f"#table-{tables.sales}")).to_contain_text("300")
    page.get_by_label("Name or table ID").fill("TOTAL")
    expect(page.locator(f"#table-{tables.sales}")).to_have_count(0)
    page.wait_for_url("**/ui/tables?text=TOTAL")
    page.goto("/ui/tables?scope=job")
    row = page.locator(f"#table-{tables.totals}")
    expect(row.get_by_role("link", name="say")).to_have_attribute("href", re.compile(r"/ui/jobs/\d+/nodes/say"))
    row.get_by_role("link", name="totals").click()
    page.wait_for_url(f"**/ui/tables/{tables.totals}")
    rows = page.locator("#rows tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("north")
    expect(rows.last).to_contain_text("NULL")
    page.goto("/ui/tables?text=nothing+like+it")
    expect(page.get_by_text("No matching tables")).to_be_visible()


def test_a_table_shows_its_lineage(tables: Tables, page: Page) -> None:
    page.goto(f"/ui/tables/{tables.totals}")
    revenue = page.get_by_role("row", name=re.compile("^revenue"))
    expect(revenue.get_by_role("link", name="sales.units")).to_have_attribute("href", f"/ui/tables/{tables.sales}")
    nodes = page.locator(".gnode")
    expect(nodes).to_have_count(2)
    expect(page.locator(".gedge")).to_have_count(1)
    expect(page.locator(f'[data-node="{tables.totals}"]')).to_contain_text("say · 3 rows")
    page.locator(f'[data-node="{tables.totals}"] .gnode-main').click()
    panel = page.locator(".graph-panel")
    expect(panel).to_contain_text("GROUP BY")
    panel.get_by_text("Plan").click()
    expect(panel.get_by_text('"op": "aggregate"')).to_be_visible()
    page.locator(f'[data-node="{tables.sales}"] .gnode-main').click()
    expect(panel).to_contain_text("Stored from a value")


def test_sql_runs_and_reports_truncation(site: Site, tables: Tables, page: Page) -> None:
    page.goto("/ui/tables/sql")
    page.get_by_role("button", name="sales", exact=True).click()
    field = page.get_by_role("textbox", name=re.compile("SELECT"))
    expect(field).to_have_value("sales")
    field.fill("SELECT units, upper(shop) AS s FROM sales ORDER BY units")
    field.press("Control+Enter")
    page.wait_for_url("**/ui/tables/sql?sql=*")
    answer = page.locator("#answer")
    expect(answer.locator("tbody tr")).to_have_count(200)
    expect(answer.get_by_role("status")).to_contain_text("Truncated: these are the first 200 rows")
    expect(answer.locator("tbody tr").nth(2)).to_contain_text("NULL")
    address = answer.get_by_role("link", name=re.compile("CSV")).get_attribute("href")
    assert address is not None
    file = site.client.get(address)
    assert file.headers["content-disposition"] == 'attachment; filename="rows.csv"'
    assert file.text.splitlines()[:3] == ["units,s", "0,NORTH", "1,SOUTH"]
    assert len(file.text.splitlines()) == ROWS + 1
    field.fill("SELECT * FROM system.tables")
    page.get_by_role("button", name="Run").click()
    expect(answer.get_by_role("alert")).to_contain_text("no table is named 'system.tables'")
    field.fill("SELECT units FROM sales WHERE units < 0")
    field.press("Control+Enter")
    expect(answer).to_contain_text("no rows")


def test_table_pages_are_accessible(tables: Tables, page: Page) -> None:
    sql = "/ui/tables/sql?sql=SELECT+*+FROM+sales"
    for path, loaded in (
        ("/ui/tables", "#tables"),
        (f"/ui/tables/{tables.totals}", "#rows tbody"),
        (sql, "#answer tbody"),
    ):
        page.goto(path)
        expect(page.locator(loaded)).to_be_visible()
        assert accessibility_findings(page) == []
        page.set_viewport_size(NARROW)
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"], path
        page.set_viewport_size({"width": 1280, "height": 800})
