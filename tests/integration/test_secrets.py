"""A secret is visible only to the handlers that receive it."""

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fleet import fan, fleet, graph, handlers, retry, rows, task
from pydantic import SecretStr
from web import Web, web

from dagmaster.engine.change_set import Rules
from dagmaster.fleet import _with_sealed_env
from dagmaster.handlers import Handler
from dagmaster.model.compile import compile_graph
from dagmaster.model.graph import Graph
from dagmaster.model.problems import InvalidWorkflow
from dagmaster.model.workflow import ChildTask, FanInNode, FanOutNode, InputSpec, InputType, WorkflowNode
from dagmaster.python.inputs import inputs_of
from dagmaster.python.signatures import Signature
from dagmaster.queues.contract import Registration
from dagmaster.queues.http import HttpTransport
from dagmaster.settings import load_settings
from dagmaster.store.connect import opened
from dagmaster.store.sealer import Sealer, open_sealer

CLEAR = 'hunter2-"quoted"-ünïcode'
DECLARED = {"token": "string"}
SECRET = {"token": InputSpec(type=InputType.STRING, secret=True)}
COLUMNS = """SELECT table_name AS name, column_name AS field FROM information_schema.columns
    WHERE table_schema = 'dagapp' AND data_type IN ('text', 'character varying', 'json', 'jsonb', 'ARRAY')
    AND table_name <> 'dag_secrets'"""


def spill(ctx: Any) -> dict[str, Any]:
    """Leak the secret in every possible way."""
    token = ctx.params["token"]
    seen.append((ctx.params["token"], ctx.params["header"]))
    sys.stdout.write(f"printed {token}\n")
    for letter in token:
        sys.stdout.write(letter)
    ctx.logger.warning("logged %s", token)
    ctx.progress(1, 2, f"with {token}")
    ctx.checkpoint("phase", {"token": token})
    if ctx.retry_count == 0:
        raise ValueError(f"no way with {token}")
    return {"token": token, "nested": [{"url": f"https://me:{token}@host/"}]}


async def use(ctx: Any) -> dict[str, Any]:
    seen.append((ctx.params["token"], ctx.params.get("header")))
    return {"length": len(ctx.params["token"])}


seen: list[tuple[str, str | None]] = []


def leaky() -> Graph:
    """Two attempts, a fan-out over the output, and a child workflow."""
    params = {"token": "{{ inputs.token }}", "header": "Bearer {{ inputs.token }}!"}
    nodes: dict[str, Any] = {
        "spill": task("spill", "spread", params=params, retry=retry(1)),
        "spread": FanOutNode(
            source="{{ [nodes.spill.output.token, nodes.spill.output.token] }}",
            task=ChildTask(handler="use", queue="q", params={"token": "{{ item }}"}),
            next=("gather",),
        ),
        "gather": FanInNode(next=("call",)),
        "call": WorkflowNode(workflow="inner", inputs={"token": "{{ inputs.token }}"}, next=("END",)),
    }
    return graph(nodes, "leaky", start="spill", inputs=DECLARED)


def inner() -> Graph:
    return graph(
        {"use": task("use", "END", params={"token": "{{ inputs.token }}"})}, "inner", start="use", inputs=DECLARED
    )


def with_secret(graph: Graph) -> Graph:
    workflow = graph.workflow.model_copy(update={"inputs": SECRET})
    return type("Kept", (), {"workflow": workflow})()


@asynccontextmanager
async def spilling(dsn: str, **settings: Any) -> AsyncIterator[Web]:
    seen.clear()
    known = {"spill": spill, "use": use}
    async with web(dsn, with_secret(inner()), with_secret(leaky()), runs=True, functions=known, **settings) as api:
        yield api


async def leaks(dsn: str, clear: str = CLEAR) -> list[str]:
    """The places in the database that contain it, plain or JSON-escaped."""
    columns_with_secret = []
    forms = [clear, clear.replace('"', '\\"')]
    async with opened(dsn, application="test") as conn:
        for column in await (await conn.execute(COLUMNS)).fetchall():
            query = (
                f"SELECT form FROM dagapp.{column['name']}, unnest($1::text[]) AS form "
                f"WHERE strpos({column['field']}::text, form) > 0 LIMIT 1"
            )
            if await (await conn.execute(query, [forms])).fetchall():
                columns_with_secret.append(f"{column['name']}.{column['field']}")
    return columns_with_secret


async def test_a_secret_is_in_no_row_log_response_or_page(
    dsn: str, log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with spilling(dsn) as api:
        body = {"workflow_id": "leaky", "input_params": {"token": CLEAR}, "idempotency_key": "once"}
        submitted = await api.post("/api/v1/jobs", body, 201)
        again = await api.post("/api/v1/jobs", body)
        assert again["job_id"] == submitted["job_id"], "the same content is the same job"
        await api.fleet.completed(int(submitted["job_id"]))
        assert seen[:2] == [(CLEAR, f"Bearer {CLEAR}!")] * 2
        assert seen[2:] == [(CLEAR, None)] * 3, "two children, and the called workflow"
        assert await leaks(dsn) == []
        logs = {path: path.read_text(errors="replace") for path in log_dir.rglob("*") if path.is_file()}
        assert any("printed ***" in text for text in logs.values())
        assert [path for path, text in logs.items() if CLEAR in text] == []
        path = f"/api/v1/jobs/{submitted['job_id']}"
        paths = [path, f"{path}/nodes", f"{path}/nodes/spill", f"{path}/timeline", f"{path}/nodes/spill/checkpoints"]
        pages = [f"/ui/jobs/{submitted['job_id']}{part}" for part in ("", "/timeline", "/nodes/spill")]
        for address in (
            *paths,
            *pages,
            f"{path}/nodes/spill/logs",
            "/ui/submit?workflow=leaky&job=" + submitted["job_id"],
        ):
            answer = (await api.client.get(address)).text
            assert CLEAR not in answer and "hunter2" not in answer, address
            assert "dms1[" not in answer, address
        assert (await api.get(path))["input_params"] == {"token": "***"}
    written = [logging.Formatter().format(record) for record in caplog.records]
    assert any("logged" in line for line in written)


async def test_a_configured_key_is_in_no_table(dsn: str) -> None:
    async with web(dsn, with_secret(inner()), secret_key="s" * 32) as api:
        await api.post("/api/v1/jobs", {"workflow_id": "inner", "input_params": {"token": CLEAR}}, 201)
        [job] = await rows(dsn, "SELECT input_params -> 'token' AS sealed FROM dagapp.dag_jobs")
        async with opened(dsn, application="test") as conn:
            assert (await open_sealer(conn, b"s" * 32)).open([job["sealed"]]) == {job["sealed"]: CLEAR}
            with pytest.raises(ValueError, match="another DAGMASTER_SECRET_KEY"):
                (await open_sealer(conn, None)).open([job["sealed"]])


async def test_a_remote_worker_gets_only_the_secrets_of_its_own_task(dsn: str) -> None:
    async with web(dsn, with_secret(inner())) as api:
        await api.fleet.orchestrator()
        async with api.real_server() as url:
            transport = HttpTransport(url)
            async with transport.open(None) as link:
                await link.register(Registration("far", 7, ("q",), ("use",), 1))
                await api.post("/api/v1/jobs", {"workflow_id": "inner", "input_params": {"token": CLEAR}}, 201)
                [message] = await link.exchange([], 1)
                [reference] = [
                    row["sealed"]
                    for row in await rows(dsn, "SELECT input_params ->> 'token' AS sealed FROM dagapp.dag_jobs")
                ]
                assert reference.encode() in message.params
                assert await link.open_secrets(message.task_id, [reference]) == {reference: CLEAR}
                other = Sealer([b"x"]).seal("something else")
                body = {"task_id": message.task_id, "references": [other]}
                await api.post(f"/api/v1/workers/{link._transport.worker_id}/secrets", body, 403)
            await transport.close()


async def test_a_submitted_sealed_reference_is_refused(dsn: str) -> None:
    async with web(dsn, with_secret(inner())) as api:
        body = {"workflow_id": "inner", "input_params": {"token": Sealer([b"x"]).seal("stolen")}}
        refused = await api.post("/api/v1/jobs", body, 422)
        assert "looks like a sealed secret" in refused["error"]["message"]
        short = await api.post("/api/v1/jobs", {"workflow_id": "inner", "input_params": {"token": "abc"}}, 422)
        assert "at least 4 characters" in short["error"]["message"] and "abc" not in short["error"]["message"]


async def test_a_secret_variable_is_sealed_before_an_expression_sees_it(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGMASTER_VAR_TOKEN", CLEAR)
    monkeypatch.setenv("DAGMASTER_VAR_PLACE", "here")
    settings = load_settings(secret_env=["TOKEN"])
    rules = await _with_sealed_env(dsn, Rules(env=settings.template_env()), settings)
    assert rules.env["PLACE"] == "here" and CLEAR not in rules.env["TOKEN"]
    seen.clear()
    async with fleet(dsn, use=use) as running:
        await running.worker(owner=await running.orchestrator(rules=rules))
        job_id = await running.submit(
            graph({"use": task("use", "END", params={"token": "{{ env.TOKEN }}"})}, start="use")
        )
        await running.completed(job_id)
    assert seen == [(CLEAR, None)]
    assert await leaks(dsn) == []


def test_a_secret_has_no_default_and_cannot_control_the_flow() -> None:
    for inputs, message in (
        ({"token": InputSpec(secret=True, default="abcd", required=False)}, "anybody could read it"),
        ({"token": InputSpec(secret=True, type=InputType.INTEGER)}, "must be a string"),
    ):
        with pytest.raises(InvalidWorkflow, match=message):
            compile_graph(inner().workflow.model_copy(update={"inputs": inputs}))
    fanned = fan().workflow
    spread = fanned.nodes["spread"].model_copy(update={"source": "{{ inputs.token }}"})
    workflow = fanned.model_copy(update={"inputs": SECRET, "nodes": {**fanned.nodes, "spread": spread}})
    with pytest.raises(
        InvalidWorkflow, match="input 'token' is secret: it can only be used in the parameters of tasks"
    ):
        compile_graph(workflow)


def test_a_secret_parameter_in_python_is_a_secret_input() -> None:
    def signs_in(token: SecretStr, again: SecretStr | None = None, name: str = "me") -> None: ...

    secrets = {name: spec.secret for name, spec in inputs_of(Signature(signs_in)).items()}
    assert secrets == {"token": True, "again": True, "name": False}


async def test_a_secret_is_redacted_in_handler_processes_too(dsn: str, log_dir: Path) -> None:
    known = handlers()
    known.register(Handler("spill_apart", spill_apart, isolation="process"))
    async with web(
        dsn,
        with_secret(
            graph(
                {"use": task("spill_apart", "END", params={"t": "{{ inputs.token }}"})},
                "apart",
                start="use",
                inputs=DECLARED,
            )
        ),
    ) as api:
        await api.fleet.worker(owner=await api.fleet.orchestrator(), known=known)
        submitted = await api.post("/api/v1/jobs", {"workflow_id": "apart", "input_params": {"token": CLEAR}}, 201)
        [job] = await api.fleet.completed(int(submitted["job_id"]))
        assert job["result_data"]["use"]["length"] == len(CLEAR)
        assert await leaks(dsn) == []
        assert [path for path in log_dir.rglob("*.log") if CLEAR in path.read_text(errors="replace")] == []


def spill_apart(ctx: Any) -> dict[str, Any]:
    sys.stdout.write(ctx.params["t"])
    return {"length": len(ctx.params["t"]), "token": ctx.params["t"]}
