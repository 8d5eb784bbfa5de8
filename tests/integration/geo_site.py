"""The shipped workflows on a real fleet, with zones in folders."""

from pathlib import Path
from typing import Any

from rasters import DEM, create_cog
from web import Web

from dagmaster.authoring.yaml import QueueRules, load_workflow
from dagmaster.geo.raster.cog import CogInfo
from dagmaster.geo.raster.validate import validate
from dagmaster.model.compile import compile_graph
from dagmaster.model.graph import Graph

WORKFLOWS = Path(__file__).parents[2] / "workflows"


def shipped(name: str) -> Graph:
    return compile_graph(load_workflow(WORKFLOWS / f"{name}.yaml", queues=QueueRules(default_queue="q")))


def make_cog(target: Path, source: Path = DEM) -> CogInfo:
    profile = validate(source).profile
    assert profile is not None
    return create_cog(source, target, profile)


async def run_job(api: Web, workflow_id: str, **inputs: Any) -> dict[str, Any]:
    """The nodes of a completed job by id."""
    job = await api.post("/api/v1/jobs", {"workflow_id": workflow_id, "input_params": inputs}, 201)
    await api.fleet.completed(int(job["job_id"]), seconds=90)
    return await api.fleet.nodes(int(job["job_id"]))


async def submit_version(
    api: Web, workflow_id: str, dataset: str, data_type: str = "raster", **inputs: Any
) -> dict[str, Any]:
    """Submit a job for an asset; return the version when the job has ended."""
    body = {
        "workflow_id": workflow_id,
        "platform_id": "ddh",
        "platform_refs": {"dataset_id": dataset, "resource_id": data_type},
        "data_type": data_type,
        "input_params": inputs,
    }
    submitted = await api.post("/api/v1/submit", body, 201)
    await api.fleet.ended(int(submitted["job_id"]), seconds=90)
    asset = await api.get(f"/api/v1/assets/{submitted['asset_id']}")
    version: dict[str, Any] = {**asset["versions"][0], "job_id": int(submitted["job_id"])}
    return version
