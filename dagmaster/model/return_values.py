"""The return value of a workflow function, with a job's results in place of its tasks."""

from collections.abc import Mapping
from typing import Any

from dagmaster.model.expressions import compile_template


def returned_value(returns: Any, outputs: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
    """The value as JSON data, from the outputs by node. Raises ExpressionFailed for missing results."""
    nodes = {name: {"output": output} for name, output in outputs.items()}
    return compile_template(returns).resolve({"inputs": inputs, "nodes": nodes})
