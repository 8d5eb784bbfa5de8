"""What a handler promises to whoever names it in a workflow."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dagmaster.model.retry import RetryPolicy

# Between the module and the function in the names of Python tasks.
ENTRY_POINT_MARK = ":"


@dataclass(frozen=True, slots=True)
class Contract:
    """`params` is a JSON Schema of what it takes; None where nothing is said of it.

    `is_uniform`: every worker that runs the handler at this moment has this contract, and there is one.
    """

    name: str
    queue: str | None = None
    timeout_seconds: float | None = None
    retry: RetryPolicy | None = None
    params: Mapping[str, Any] | None = None
    documentation: str = ""
    is_uniform: bool = False


Contracts = Mapping[str, Contract]
"""By all names that may be written: `tasks:clean` also as `tasks.clean`."""


def by_spelling(contracts: Iterable[Contract]) -> dict[str, Contract]:
    listed = list(contracts)
    dotted = {contract.name.replace(ENTRY_POINT_MARK, "."): contract for contract in listed}
    return {**dotted, **{contract.name: contract for contract in listed}}


def queues_by_handler(contracts: Contracts) -> dict[str, str | None]:
    """The queue that each handler is registered with."""
    return {name: contract.queue for name, contract in contracts.items()}
