"""How far tasks are: the newest word of each, told now and then. It never holds up a handler."""

from collections.abc import Callable, Iterator
from functools import partial

from dagmaster.handlers.contract import Progress


class Teller:
    """Handlers speak in threads of their own; what they said is taken from time to time."""

    def __init__(self) -> None:
        self._latest: dict[str, Progress] = {}

    def sink(self, task_id: str) -> Callable[[Progress], None]:
        return partial(self._latest.__setitem__, task_id)

    def take(self) -> Iterator[tuple[str, Progress]]:
        """What is new since the last time."""
        for task_id in list(self._latest):
            yield task_id, self._latest.pop(task_id)
