"""Tables over HTTP: their lineage, and SQL."""

from pathlib import Path

import pytest
from web import web

from dagmaster.data import col
from dagmaster.data.engine import folder_url
from dagmaster.python.data_context import DataContext


async def test_the_api_returns_lineage_and_query_results(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGMASTER_DATABASE_URL", dsn)
    url = folder_url(tmp_path / "tables", "service")
    async with DataContext(url, scope="global") as context, web(dsn, data_url=url) as api:
        numbers = await context.create_object_from_value({"x": [1, 2, 3]}, name="numbers")
        await numbers.where(col("x") > 1).with_columns(y=col("x") * 2).materialize(name="some")

        lineage = await api.get("/api/v1/data/objects/some/lineage")
        assert [row["name"] for row in lineage["tables"]] == ["some", "numbers"]
        assert lineage["tables"][0]["inputs"] == [str(numbers.table_id)]
        origin = [{"object_id": str(numbers.table_id), "column": "x"}]
        assert lineage["tables"][0]["column_sources"] == {"x": origin, "y": origin}
        assert lineage["tables"][1]["column_sources"] == {}
        assert not lineage["is_truncated"]
        assert (await api.get("/api/v1/data/objects/none/lineage", 404))["code"] == "unknown_table"

        answer = await api.post("/api/v1/data/query", {"sql": "SELECT sum(x) AS n FROM some"})
        assert answer == {"columns": ["n"], "rows": [{"n": 5}], "truncated_by": None}
        short = await api.post("/api/v1/data/query", {"sql": "SELECT * FROM numbers", "max_rows": 2})
        assert (len(short["rows"]), short["truncated_by"]) == (2, "rows")
        refused = await api.post("/api/v1/data/query", {"sql": "SELECT * FROM system.tables"}, 404)
        assert refused["detail"] == "no table is named 'system.tables'; known are some, numbers"
        assert (await api.post("/api/v1/data/query", {"sql": "SELECT z FROM some"}, 422))["code"] == "query_failed"
        assert (await api.post("/api/v1/data/query", {"sql": "SELECT sleep(1)"}, 422))["code"] == "invalid"


async def test_a_server_opens_no_data_engine_in_its_process(dsn: str, tmp_path: Path) -> None:
    async with web(dsn, data_url=folder_url(tmp_path)) as api:
        refused = await api.post("/api/v1/data/query", {"sql": "SELECT 1"}, 409)
    assert "DAGMASTER_DATA_URL=service:///folder" in refused["detail"]
