"""A workflow for the asset pages: it delivers the outputs of a version, or fails."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from browsing import FOLDER, Site
from serving import server

from dagmaster.handlers.contract import HandlerContext

WORKFLOWS = FOLDER / "asset_workflows"
UNREADABLE = "unreadable.tif"


async def deliver(ctx: HandlerContext) -> dict[str, Any]:
    source = ctx.params["source"]
    if source == UNREADABLE:
        raise ValueError("the file is not a raster")
    return {
        "blob_path": f"silver/ddh/{source}",
        "stac_item_id": f"item-{source}",
        "content_hash": "sha256:5e884898da28047151d0e56f8dc62927",
        "bbox": [5.8, 47.2, 15.1, 55.1],
    }


class AssetSite(Site):
    def submit_version(self, dataset: str, *, source: str = "scene.tif", **fields: Any) -> dict[str, Any]:
        """Submit a version of a dataset and wait until it is processed."""
        body = {
            "workflow_id": "ingest",
            "platform_id": "ddh",
            "platform_refs": {"dataset_id": dataset, "resource_id": "scene"},
            "data_type": "raster",
            "input_params": {"source": source},
            **fields,
        }
        answer = self.client.post("/api/v1/submit", json=body)
        assert answer.status_code == 201, answer.text
        submitted: dict[str, Any] = answer.json()
        self.until(submitted["job_id"], "completed", "failed")
        return submitted

    def asset(self, asset_id: str) -> dict[str, Any]:
        asset: dict[str, Any] = self.client.get(f"/api/v1/assets/{asset_id}").raise_for_status().json()
        return asset


@contextmanager
def asset_site(dsn: str) -> Iterator[AssetSite]:
    with server(dsn, WORKFLOWS, deliver=deliver) as running, closing(AssetSite(running, dsn)) as site:
        yield site
