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


def look_into(folder: Path, it: Web) -> None:
    it.services.catalog = Catalog(folder, queues=QueueRules(None, "q"), must_exist=False)


async def test_an_empty_installation_offers_a_sample(dsn: str, folder: Path) -> None:
    async with web(dsn, workflows_dir=folder) as it:
        look_into(folder, it)
        for page in ("/ui/", "/ui/submit"):
            assert SAMPLE in await it.get(page)
        added = await it.post(SAMPLE, None, 201)
        assert [workflow["workflow_id"] for workflow in added["workflows"]] == ["sample"]
        assert added["problems"] == []
        assert SAMPLE not in await it.get("/ui/submit")
        await it.post(SAMPLE, None, 409)
        await it.post("/api/v1/jobs", {"workflow_id": "sample"}, 201)


async def test_a_shared_server_writes_no_sample_files(dsn: str, folder: Path) -> None:
    async with web(dsn, is_local=False, workflows_dir=folder) as it:
        look_into(folder, it)
        key = await it.key("root")
        assert SAMPLE not in await it.get("/ui/submit", headers=key)
        await it.post(SAMPLE, None, 403, headers=key)
        assert not folder.exists()
