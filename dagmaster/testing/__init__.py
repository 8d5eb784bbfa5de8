"""Run workflows in tests: on a real database, with injected faults and skipped waiting times."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagmaster.testing.clock import TravelClock
    from dagmaster.testing.databases import Databases
    from dagmaster.testing.handler_calls import acall_handler, call_handler
    from dagmaster.testing.job import JobNotEnded, JobUnderTest, job_under_test, run_workflow
    from dagmaster.testing.records import Attempt, NodeRecord

__all__ = [
    "Attempt",
    "Databases",
    "JobNotEnded",
    "JobUnderTest",
    "NodeRecord",
    "TravelClock",
    "acall_handler",
    "call_handler",
    "job_under_test",
    "run_workflow",
]
HOMES = {
    **dict.fromkeys(("JobNotEnded", "JobUnderTest", "job_under_test", "run_workflow"), "job"),
    **dict.fromkeys(("Attempt", "NodeRecord"), "records"),
    **dict.fromkeys(("acall_handler", "call_handler"), "handler_calls"),
    "Databases": "databases",
    "TravelClock": "clock",
}


def __getattr__(name: str) -> Any:
    # Loaded on use: pytest imports the plugin, and so this module, even if no test needs a workflow.
    if name in HOMES:
        return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
