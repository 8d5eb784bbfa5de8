"""What a retry policy forgives, said once more in other words than the model's."""

from collections.abc import Sequence

from dagmaster.model.retry import RetryPolicy

# Errors as workers report them: the class first, then what it is derived from.
REFUSED = ("ConnectionRefusedError", "ConnectionError", "OSError", "Exception")
WRONG = ("ValueError", "Exception")
EXHAUSTED = ("MemoryError", "Exception")
MISNAMED = ("NameError", "Exception")
ERRORS: Sequence[tuple[str, ...]] = (REFUSED, WRONG, EXHAUSTED, MISNAMED)

LATE = ("TimeoutError", "OSError", "Exception")
UNRESOLVED = ("ExpressionFailed", "Exception")


def forgives(policy: RetryPolicy, error: Sequence[str], *, is_asked_for: bool = False) -> bool:
    """Whether its rules allow another attempt after this error; `is_asked_for` by the worker itself."""
    named = set(error)
    if named & set(policy.never):
        return False
    if is_asked_for:
        return True
    if not policy.on:
        return not named & {"NameError", "ExpressionFailed"}
    return bool(named & set(policy.on)) or moves(policy, error)


def moves(policy: RetryPolicy, error: Sequence[str]) -> bool:
    """Whether what comes next goes to the queue for what needs more memory."""
    return policy.on_oom is not None and "MemoryError" in error
