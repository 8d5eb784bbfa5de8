"""What a workflow function has returned, with the values of a job in the places of its tasks."""

from collections.abc import Mapping
from typing import Any

from dagmaster.model.expressions import compile_template


def returned_value(returns: Any, outputs: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
    """As JSON data, from the outputs by node. Raises ExpressionFailed for results that are not there."""
    nodes = {name: {"output": output} for name, output in outputs.items()}
    return compile_template(returns).resolve({"inputs": inputs, "nodes": nodes})
