"""The documentation is correct: its code blocks run, and its reference is complete."""

import importlib.util
import inspect
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docs_pages import ROOT, Block, Page, find_missing, find_pages, read_page
from docs_runner import make_template, prepared
from docs_samples import record, with_samples
from pydantic_core import PydanticUndefined

import dagmaster
from dagmaster import client
from dagmaster.authoring import dialects
from dagmaster.errors import DagmasterError
from dagmaster.explain.facts import Kind
from dagmaster.handlers import load_handlers, registry
from dagmaster.http.errors import CODES, STATUS, code_of
from dagmaster.model.access import Role
from dagmaster.model.comparisons import COMPARISONS
from dagmaster.model.operations import FILTERS, METHODS, TESTS
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.states import JOB_MOVES, NODE_MOVES
from dagmaster.model.workflow import Aggregation, InputSpec, InputType, Workflow
from dagmaster.settings import ALIASES, PREFIX, Settings
from dagmaster.store.job_tables import EVENT_TYPES
from dagmaster.store.tables import Base
from dagmaster.web.api.commands import COMMANDS
from dagmaster.web.checks import CHECKS
from dagmaster.web.prometheus import Fleet

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

PAGES = find_pages()
MAX_NOT_RUN = 16
RECORDS = bool(os.environ.get("DAGMASTER_RECORD_SAMPLES"))


@pytest.fixture(scope="session")
def template() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dagmaster-docs-") as folder:
        Path(folder).chmod(0o755)
        yield make_template(Path(folder) / "data")


@pytest.mark.parametrize("path", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_what_the_page_says_works(path: Path, template: Path) -> None:
    page = read_page(path)
    with prepared(page, template) as reader:
        reader.read(page)
    if RECORDS:
        path.write_text(with_samples(page, reader.outputs), encoding="utf-8")


def test_sample_output_takes_the_times_of_a_run() -> None:
    written = (
        "JOB                 STATUS       TIME   ERROR\n"
        "247846017759457860  ✗ failed     46 ms  node a failed: ...\n"
        "...\n"
        " ✓ nap   completed       504 ms\n"
        "03:00:00.100  a failed\n"
    )
    actual = (
        "JOB                 STATUS  TIME     ERROR\n247900000000000001  failed  1.2 min  node a failed: disk full\n"
        "nap   completed      9 ms\n18:05:09.007  b failed\n18:05:10.008  a failed\n"
    )
    recorded = (
        "JOB                 STATUS       TIME   ERROR\n"
        "247846017759457860  ✗ failed     1.2 min  node a failed: ...\n"
        "...\n"
        " ✓ nap   completed         9 ms\n"
        "18:05:10.008  a failed\n"
    )
    assert record(written, actual) == recorded
    assert find_missing(recorded, actual) is None
    text = f"# Page\n\n<!-- output -->\n```text\n{written}```\n"
    page = Page(ROOT / "docs" / "index.md", text, "", [Block("docs/index.md:4", "text", written, {"output": ""})])
    assert with_samples(page, {"docs/index.md:4": actual}) == text.replace(written, recorded)


def test_hardly_any_code_block_is_not_run() -> None:
    blocks = [block for path in PAGES for block in read_page(path).blocks]
    not_run = [f"{block.place}: {block.marks['not run']}" for block in blocks if "not run" in block.marks]
    assert len(not_run) <= MAX_NOT_RUN, f"{len(not_run)} of {len(blocks)} blocks are not run:\n" + "\n".join(not_run)


def test_no_link_is_broken() -> None:
    broken = [f"{path.relative_to(ROOT)}: {link}" for path in PAGES for link in _links(path) if not _leads(path, link)]
    assert not broken


def test_every_page_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in _links(index)}
    assert {path for path in PAGES if path.parent.parent == index.parent} <= linked


def test_pages_are_undecorated_and_name_no_machine() -> None:
    odd = re.compile("[\u2600-\u26ff\u2728\U0001f300-\U0001faff]|/(?:work|root|home)/|localhost")
    assert not [f"{path.name}: {match[0]}" for path in PAGES if (match := odd.search(path.read_text(encoding="utf-8")))]


def test_the_tools_of_the_documentation_can_be_loaded() -> None:
    for path in (ROOT / "docs" / "tools").glob("*.py"):
        assert _load(path).__doc__


# Completeness of the reference


def test_the_command_line_reference_is_complete() -> None:
    tool = _load(ROOT / "docs" / "tools" / "cli_reference.py")
    page = tool.PAGE.read_text(encoding="utf-8")
    assert page == tool.renew(page), "run: python docs/tools/cli_reference.py"


def test_the_api_and_gateway_references_are_complete() -> None:
    tool = _load(ROOT / "docs" / "tools" / "http_reference.py")
    for path in tool.PAGES:
        assert path.read_text(encoding="utf-8") == tool.renew(path), "run: python docs/tools/http_reference.py"


def test_all_api_commands_are_documented() -> None:
    assert set(COMMANDS) <= _words("http-api.md")


def test_all_error_codes_are_documented() -> None:
    raised = {code_of(kind()) for kind in STATUS if issubclass(kind, DagmasterError)}
    specific = {code_of(kind()) for kind in _kinds(DagmasterError) if kind.__module__ == "dagmaster.errors"}
    unheard_of = {"dagmaster_error", "embedded_server_failed", "illegal_move", "expression_failed", "values_too_large"}
    unheard_of |= {"query_cancelled"}  # With its waiter.
    assert {*raised, *specific, *CODES.values()} - unheard_of <= _words("http-api.md")


def test_all_metrics_are_documented() -> None:
    nothing: dict[str, Any] = {"orchestrators": [], "workers": [], "queues": []}
    nothing |= {"callbacks": {"waiting": 0, "failed": 0}, "connections": {"most": 1, "by_application": {}}}
    nothing["schedules"] = {"active": 0, "paused": 0, "late": 0}
    described = {word.removesuffix("_total") for word in _words("metrics.md") if word.startswith("dagmaster_")}
    assert {metric.name for metric in Fleet(nothing).collect()} == described


def test_the_whole_client_is_documented() -> None:
    words = _words("client.md")
    methods = {name: method for name, method in vars(client.Client).items() if not name.startswith("_")}
    assert {*methods, *client.__all__} <= words
    for name, method in methods.items():
        assert set(inspect.signature(method).parameters) - {"self"} <= words, name
        assert inspect.signature(method).parameters == inspect.signature(getattr(client.AsyncClient, name)).parameters


def test_the_whole_python_api_is_documented() -> None:
    words = _words("python.md") | _words("client.md")
    assert set(dagmaster.HOMES) <= words
    for name in dagmaster.sync.__all__:
        assert set(inspect.signature(getattr(dagmaster, name)).parameters) <= words, name


def test_all_roles_checks_and_reasons_are_documented() -> None:
    assert set(Role) <= _words("secure-the-api.md", "how-to")
    assert {check.name for check in CHECKS} <= _words("monitor.md", "how-to")
    assert set(Kind) <= _words("find-out-why-a-job-waits.md", "how-to")


def test_all_settings_are_documented() -> None:
    rows = {row[0].strip("`"): row[1:] for row in _rows("settings.md")}
    assert set(Settings.model_fields) <= set(rows)
    for name, info in Settings.model_fields.items():
        default, environment = rows[name][:2]
        assert re.findall("`(.+?)`", environment) == [PREFIX + name.upper(), *ALIASES.get(name, ())]
        if info.default is not PydanticUndefined and name != "worker_queues":
            assert default.strip("`") == _shown(info.default), name


def test_all_events_are_documented() -> None:
    assert set(EVENT_TYPES) <= _words("events.md")


def test_all_moves_are_documented() -> None:
    rows = {row[0].strip("`"): row[1:3] for row in _rows("states.md") if len(row) == 4}
    for move in (*JOB_MOVES, *NODE_MOVES):
        sources, target = rows[move.event]
        assert {source.strip(" `") for source in sources.split(",")} == {str(source) for source in move.sources}
        assert target.strip("`") == move.target


def test_all_tables_and_columns_are_documented() -> None:
    words = _words("tables.md")
    for table in Base.metadata.tables.values():
        assert table.name in (ROOT / "docs/reference/tables.md").read_text(encoding="utf-8")
        assert {column.name for column in table.columns} <= words, table.name


def test_all_handlers_are_documented() -> None:
    load_handlers([])
    built_in = {handler.name for handler in registry if handler.function.__module__ == "dagmaster.handlers.basic"}
    assert built_in <= _words("handlers.md")


def test_the_whole_expression_language_is_documented() -> None:
    words = _words("expressions.md")
    assert {*FILTERS, *TESTS, *METHODS} <= words
    text = (ROOT / "docs/reference/expressions.md").read_text(encoding="utf-8")
    assert all(operator in text for operator in COMPARISONS)


def test_all_keys_of_workflow_files_are_documented() -> None:
    keys = {key for keys in dialects._KEYS.values() for key in keys}
    of_workflows = {field.alias or name for name, field in Workflow.model_fields.items()}
    known = {*of_workflows, *InputSpec.model_fields, *RetryPolicy.model_fields, *Aggregation, *InputType}
    assert {*dialects._ALL_KEYS, *keys, *known} <= _words("workflow-file.md")


def _kinds(kind: type[DagmasterError]) -> Iterator[type[DagmasterError]]:
    for inner in kind.__subclasses__():
        yield inner
        yield from _kinds(inner)


def _words(page: str, folder: str = "reference") -> set[str]:
    """The words between backticks, also in lists."""
    text = (ROOT / "docs" / folder / page).read_text(encoding="utf-8")
    return {word for code in re.findall(r"`([^`\n]+)`", text) for word in [code, *re.findall(r"[\w-]+", code)]}


def _rows(page: str) -> list[list[str]]:
    lines = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]


def _shown(default: Any) -> str:
    if default is None or default == []:
        return "none"
    return str(default).lower() if isinstance(default, bool) else f"{default:.0f}" if default == 1.0 else str(default)


def _links(path: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
    pairs = re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text)
    return [link for pair in pairs for link in pair if link and not link.startswith("http")]


def _leads(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    if not target.exists():
        return False
    return not anchor or anchor in {_anchor(head) for head in re.findall(r"^#+ (.+)$", target.read_text(), re.M)}


def _anchor(head: str) -> str:
    return re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-")


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
