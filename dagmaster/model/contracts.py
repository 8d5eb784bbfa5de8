"""The contract of a handler with the workflows that use it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dagmaster.model.retry import RetryPolicy

# Separates the module and the function in the names of Python tasks.
ENTRY_POINT_MARK = ":"


@dataclass(frozen=True, slots=True)
class Contract:
    """`params` is the JSON Schema of its parameters, if known.

    `is_uniform`: at least one worker runs the handler now, and all that do have this contract.
    """

    name: str
    queue: str | None = None
    timeout_seconds: float | None = None
    retry: RetryPolicy | None = None
    params: Mapping[str, Any] | None = None
    documentation: str = ""
    is_uniform: bool = False


Contracts = Mapping[str, Contract]
"""By every accepted spelling: `tasks:clean` also as `tasks.clean`."""


def by_spelling(contracts: Iterable[Contract]) -> dict[str, Contract]:
    known = list(contracts)
    dotted = {contract.name.replace(ENTRY_POINT_MARK, "."): contract for contract in known}
    return {**dotted, **{contract.name: contract for contract in known}}


def queues_by_handler(contracts: Contracts) -> dict[str, str | None]:
    """The queue that each handler is registered with."""
    return {name: contract.queue for name, contract in contracts.items()}
