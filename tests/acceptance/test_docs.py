"""The documentation is true: what it says is run, and what it lists is complete."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs_runner import ROOT, find_pages, make_template, prepared, read_page

pytestmark = pytest.mark.acceptance

PAGES = find_pages()


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
