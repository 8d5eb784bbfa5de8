"""Check the files that a job's inputs name, before anything is stored."""

import logging
from collections.abc import Mapping
from typing import Any

from dagmaster.errors import Invalid, NotFound
from dagmaster.model.workflow import InputFormat, Workflow
from dagmaster.settings import Settings
from dagmaster.storage import StorageUnavailable, open_storage

log = logging.getLogger(__name__)


async def find_file_problems(workflow: Workflow, inputs: Mapping[str, Any], settings: Settings) -> list[str]:
    """The inputs declared with `format: file` whose file does not exist.

    If the storage cannot be reached from here, nothing is known about the file, and the job will find out.
    """
    names = [name for name, spec in workflow.inputs.items() if spec.format is InputFormat.FILE]
    named = {name: inputs[name] for name in names if isinstance(inputs.get(name), str) and inputs[name]}
    storage = open_storage(settings) if named else None
    problems = []
    for name, reference in named.items():
        assert storage is not None
        try:
            await storage.source(storage.locate(reference))
        except StorageUnavailable as error:
            log.warning("input %r was submitted unchecked: %s", name, error)
        except (Invalid, NotFound) as error:
            problems.append(f"input {name!r}: {error}")
    return problems
