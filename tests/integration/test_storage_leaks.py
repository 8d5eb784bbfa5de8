"""No key, no signature and no password of the storage or the database leaves the process that needs it.

Each is a word that is looked for in every row, log, response, page, catalogue entry and line of the command line, after
jobs that succeed and jobs that fail in all the ways in which libraries print addresses.
"""

import asyncio
import base64
import http.server
import io
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import obstore
import pytest
import rasterio
import rasterio.errors
from command_line import call
from fleet import NO_RETRY, graph, rows, task
from geo_site import shipped
from obstore.store import from_url
from rasters import DEM
from s3_server import run_s3
from web import Web, web

from dagmaster.handlers import HandlerContext, raster
from dagmaster.logs import TextFormat
from dagmaster.model.compile import compile_graph
from dagmaster.model.graph import Graph
from dagmaster.model.workflow import TaskNode
from dagmaster.storage import objects

assert raster.MAX_ITEMS  # Imported for the handlers that it registers.

S3_SECRET, ACCOUNT_KEY, SAS, URL_SIGNATURE, GDAL_SIGNATURE, PASSWORD = (
    f"sentinel{name}0123456789" for name in ("s3", "key", "sas", "url", "gdal", "password")
)
ENCODED_KEY = base64.b64encode(ACCOUNT_KEY.encode()).decode()
SENTINELS = (S3_SECRET, ACCOUNT_KEY, ENCODED_KEY, SAS, URL_SIGNATURE, GDAL_SIGNATURE, PASSWORD)
COLUMNS = """SELECT table_name AS name, column_name AS field FROM information_schema.columns
    WHERE table_schema = 'dagapp'
    AND data_type IN ('text', 'character varying', 'json', 'jsonb', 'ARRAY', 'bytea')"""
# An undeclared secret in an input is stored as written, and never shown.
AS_WRITTEN = {"dag_jobs.input_params", "dag_node_states.input_params", "dag_asset_requests.input_params"}


class Forbidding(http.server.BaseHTTPRequestHandler):
    """Refuses every request with the URL in its message, or with 404."""

    def do_HEAD(self) -> None:
        self.send_response(404 if self.path.startswith("/gone") else 403)
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(f"<Error><Message>{self.path} is forbidden</Message></Error>".encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def forbidding() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Forbidding) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def written_logs() -> Iterator[io.StringIO]:
    """Everything that a process logs at level DEBUG."""
    root, text = logging.getLogger(), io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(TextFormat("%(levelname)s %(name)s: %(message)s"))
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield text
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def open_signed(ctx: HandlerContext) -> None:
    """Open a file as handlers do, with its name in the error."""
    path = f"/vsicurl/{ctx.params['url']}"
    try:
        with rasterio.Env(CPL_DEBUG=True, GDAL_HTTP_MAX_RETRY=0), rasterio.open(path):
            pass
    except rasterio.errors.RasterioIOError as error:
        raise OSError(f"{path} cannot be opened: {error}") from error


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Zones in S3 with the raster, and in Azure without access; returns that server's URL."""
    with run_s3("rasters") as s3, forbidding() as refusing:
        for name, value in {
            "DAGMASTER_DATA_DIR": str(tmp_path),
            "DAGMASTER_STORAGE_BRONZE": "s3://rasters/incoming",
            "DAGMASTER_STORAGE_EXTERNAL": "az://rasters/elsewhere",
            "DAGMASTER_STORAGE_ALLOWED_HOSTS": "127.0.0.1",
            "AWS_ENDPOINT_URL": s3,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": S3_SECRET,
            "AZURE_STORAGE_ACCOUNT_NAME": "devstoreaccount1",
            "AZURE_STORAGE_ACCOUNT_KEY": ENCODED_KEY,
            "AZURE_STORAGE_SAS_TOKEN": f"sv=2021-08-06&sp=r&sig={SAS}",
            "AZURE_STORAGE_ENDPOINT": refusing,
            "AZURE_ALLOW_HTTP": "true",
        }.items():
            monkeypatch.setenv(name, value)
        objects._open.cache_clear()
        obstore.put(from_url("s3://rasters/incoming"), "dem.tif", DEM.read_bytes())
        obstore.put(from_url("s3://rasters/incoming"), "no-raster.tif", b"no raster")
        yield refusing
        objects._open.cache_clear()


def ingest() -> Graph:
    """The shipped workflow without retries: here every failure repeats."""
    workflow = shipped("raster_ingest").workflow
    nodes = {
        name: node.model_copy(update={"retry": NO_RETRY}) if isinstance(node, TaskNode) else node
        for name, node in workflow.nodes.items()
    }
    return compile_graph(workflow.model_copy(update={"nodes": nodes}))


async def run_jobs(api: Web, refusing: str) -> dict[str, str]:
    """The status of each job by id."""
    signed = f"https://127.0.0.1:1/dem.tif?sv=2021-08-06&sig={URL_SIGNATURE}"
    sources = ["bronze/dem.tif", "bronze/no-raster.tif", "external/dem.tif", signed, f"/vsicurl/{signed}"]
    submitted = [
        await api.post("/api/v1/jobs", {"workflow_id": "raster_ingest", "input_params": {"source": source}}, 201)
        for source in sources
    ]
    by_gdal = {"workflow_id": "by_gdal", "input_params": {"url": f"{refusing}/gone.tif?sig={GDAL_SIGNATURE}"}}
    submitted.append(await api.post("/api/v1/jobs", by_gdal, 201))
    for job in submitted:
        await api.fleet.ended(int(job["job_id"]), seconds=90)
    return {job["job_id"]: (await api.get(f"/api/v1/jobs/{job['job_id']}"))["status"] for job in submitted}


async def responses(api: Web, job_ids: list[str]) -> dict[str, str]:
    addresses = ["/api/v1/jobs", "/ui/jobs", "/ui", "/ui/nodes?status=failed", "/stac/search", "/api/v1/layers"]
    for job_id in job_ids:
        job, page = f"/api/v1/jobs/{job_id}", f"/ui/jobs/{job_id}"
        addresses += [job, f"{job}/timeline", f"{job}/explain", page, f"{page}?tab=data", f"{page}?tab=timeline"]
        for node in (await api.get(job))["nodes"]:
            name = node["node_id"]
            addresses += [f"{job}/nodes/{name}", f"{job}/nodes/{name}/logs", f"{page}/nodes/{name}"]
    return {address: (await api.client.get(address)).text for address in addresses}


def command_lines(dsn: str, job_ids: list[str]) -> dict[str, str]:
    commands = [["jobs"], ["doctor"]]
    for job_id in job_ids:
        commands += [["show", job_id, "--json"], ["timeline", job_id]]
    called = {" ".join(command): call("--database-url", dsn, *command) for command in commands}
    return {command: result.out + result.err for command, result in called.items()}


async def table_texts(dsn: str) -> dict[str, str]:
    texts = {}
    for column in await rows(dsn, COLUMNS):
        name = f"{column['name']}.{column['field']}"
        [row] = await rows(
            dsn, f"SELECT string_agg({column['field']}::text, E'\\n') AS text FROM dagapp.{column['name']}"
        )
        texts[name] = row["text"] or ""
    return texts


def leaks(texts: dict[str, str]) -> set[str]:
    return {f"{place} has {word}" for place, text in texts.items() for word in SENTINELS if word in text}


async def test_no_key_signature_or_password_leaks(dsn: str, configured: str, log_dir: Path) -> None:
    with_password = dsn.replace("postgres@", f"postgres:{PASSWORD}@", 1)
    assert PASSWORD in with_password
    work = {"work": task("open_signed", "END", params={"url": "{{ inputs.url }}"})}
    by_gdal = graph(work, "by_gdal", start="work", inputs={"url": "string"})
    with written_logs() as log:
        async with web(with_password, ingest(), by_gdal, runs=True, functions={"open_signed": open_signed}) as api:
            ended = await run_jobs(api, configured)
            assert list(ended.values()) == ["completed", *["failed"] * 5]
            texts = await responses(api, list(ended))
            tables = await table_texts(dsn)
            texts |= {name: text for name, text in tables.items() if name not in AS_WRITTEN}
            texts |= await asyncio.to_thread(command_lines, with_password, list(ended))
    texts["log"] = log.getvalue()
    texts |= {str(path): path.read_text(errors="replace") for path in log_dir.rglob("*") if path.is_file()}
    assert leaks(texts) == set()
    assert leaks({name: tables[name] for name in AS_WRITTEN & tables.keys()}), "the search finds what is there"
    assert "external/dem.tif cannot be reached" in texts["dag_node_states.error_message"]
    assert "/gone.tif?sig=*** cannot be opened" in texts["dag_node_states.error_message"]
