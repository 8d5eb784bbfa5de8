"""A new installation offers a sample workflow."""

from pathlib import Path

import pytest
from web import Web, web

from dagmaster.authoring.catalog import Catalog
from dagmaster.authoring.yaml import QueueRules

SAMPLE = "/api/v1/workflows/sample"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "workflows"


def look_into(folder: Path, api: Web) -> None:
    api.services.catalog = Catalog(folder, queues=QueueRules(None, "q"), must_exist=False)


async def test_an_empty_installation_offers_a_sample(dsn: str, folder: Path) -> None:
    async with web(dsn, workflows_dir=folder) as api:
        look_into(folder, api)
        for page in ("/ui/", "/ui/submit"):
            assert SAMPLE in await api.get(page)
        added = await api.post(SAMPLE, None, 201)
        assert [workflow["workflow_id"] for workflow in added["workflows"]] == ["sample"]
        assert added["problems"] == []
        assert SAMPLE not in await api.get("/ui/submit")
        await api.post(SAMPLE, None, 409)
        await api.post("/api/v1/jobs", {"workflow_id": "sample"}, 201)


async def test_a_shared_server_writes_no_sample_files(dsn: str, folder: Path) -> None:
    async with web(dsn, is_local=False, workflows_dir=folder) as api:
        look_into(folder, api)
        key = await api.key("root")
        assert SAMPLE not in await api.get("/ui/submit", headers=key)
        await api.post(SAMPLE, None, 403, headers=key)
        assert not folder.exists()
