"""The ledger entries of the storm's handlers are true."""

from concurrent.futures import Future

import pytest
import storm_handlers
from ledger import Execution, Work

from dagmaster.handlers import Checkpoint, HandlerContext, contract


@pytest.mark.parametrize("is_stored", [True, False])
async def test_only_stored_checkpoints_count_as_saved(monkeypatch: pytest.MonkeyPatch, is_stored: bool) -> None:
    """A handler continues without it when that takes too long, as in an outage."""
    monkeypatch.setattr(contract, "STORED_WITHIN_SECONDS", 5.0 if is_stored else 0.02)
    written: list[str] = []
    monkeypatch.setattr(Execution, "write", lambda _, event: written.append(event))

    def store(_: Checkpoint) -> Future[None]:
        stored: Future[None] = Future()
        if is_stored:
            stored.set_result(None)
        return stored

    ctx = HandlerContext(task_id="1_a_0", job_id=1, node_id="a", handler="ledger.resumable_work", checkpoint_sink=store)
    await storm_handlers.resumable_work(ctx, Work(seconds=0))
    assert [event for event in written if event.startswith("begin")] == [
        f"begin {phase}" for phase in storm_handlers.PHASES
    ]
    saved = [event for event in written if event.startswith("saved")]
    assert saved == ([f"saved {phase}" for phase in storm_handlers.PHASES] if is_stored else [])
