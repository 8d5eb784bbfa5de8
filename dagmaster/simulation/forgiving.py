"""What a retry policy forgives, said once more in other words than the model's."""

from collections.abc import Sequence

from dagmaster.model.retry import RetryPolicy

# Errors as workers report them: the class first, then what it is derived from.
REFUSED = ("ConnectionRefusedError", "ConnectionError", "OSError", "Exception")
WRONG = ("ValueError", "Exception")
EXHAUSTED = ("MemoryError", "Exception")
ERRORS: Sequence[tuple[str, ...]] = (REFUSED, WRONG, EXHAUSTED)

LATE = ("TimeoutError", "OSError", "Exception")
UNRESOLVED = ("ExpressionFailed", "Exception")


def forgives(policy: RetryPolicy, error: Sequence[str], *, is_asked_for: bool = False) -> bool:
    """Whether its rules allow another attempt after this error; `is_asked_for` by the worker itself."""
    named = set(error)
    if named & set(policy.never):
        return False
    if not policy.on or is_asked_for:
        return True
    return bool(named & set(policy.on)) or moves(policy, error)


def moves(policy: RetryPolicy, error: Sequence[str]) -> bool:
    """Whether what comes next goes to the queue for what needs more memory."""
    return policy.on_oom is not None and "MemoryError" in error
