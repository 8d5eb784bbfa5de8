"""The rules of a retry policy, implemented independently of the model."""

from collections.abc import Sequence

from dagmaster.model.retry import RetryPolicy

# Errors as workers report them: the class first, then its bases.
REFUSED = ("ConnectionRefusedError", "ConnectionError", "OSError", "Exception")
WRONG = ("ValueError", "Exception")
EXHAUSTED = ("MemoryError", "Exception")
MISNAMED = ("NameError", "Exception")
ERRORS: Sequence[tuple[str, ...]] = (REFUSED, WRONG, EXHAUSTED, MISNAMED)

LATE = ("TimeoutError", "OSError", "Exception")
UNRESOLVED = ("ExpressionFailed", "Exception")


def forgives(policy: RetryPolicy, error: Sequence[str], *, is_asked_for: bool = False) -> bool:
    """Whether the rules allow another attempt after this error; `is_asked_for`: the worker requested it."""
    named = set(error)
    if named & set(policy.never):
        return False
    if is_asked_for:
        return True
    if not policy.on:
        return not named & {"NameError", "ExpressionFailed"}
    return bool(named & set(policy.on)) or moves(policy, error)


def moves(policy: RetryPolicy, error: Sequence[str]) -> bool:
    """Whether the next attempt goes to the queue with more memory."""
    return policy.on_oom is not None and "MemoryError" in error
