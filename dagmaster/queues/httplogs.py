"""Task logs of remote workers, stored by the server."""

from base64 import b64encode
from collections import OrderedDict
from urllib.parse import quote

from dagmaster.errors import DagmasterError
from dagmaster.queues.http import HttpTransport
from dagmaster.tasklogs.contract import LogUnavailable

PIECE_BYTES = 512 * 1024
KEEP_OFFSETS = 10_000


class HttpLogs:
    """Logs are read from the server. Each piece carries its offset, so that it may be sent again."""

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport
        self._offsets: OrderedDict[str, int] = OrderedDict()

    async def append(self, task_id: str, chunk: bytes) -> None:
        """Drop the rest when the server no longer accepts the log of this task."""
        size = max(min(PIECE_BYTES, self._transport.limits.max_body_bytes // 2), 1)
        began = self._offsets.setdefault(task_id, 0)
        self._offsets.move_to_end(task_id)
        if len(self._offsets) > KEEP_OFFSETS:
            self._offsets.popitem(last=False)
        for start in range(0, len(chunk), size):
            if not await self._send(task_id, began + start, chunk[start : start + size]):
                break
        self._offsets[task_id] = began + len(chunk)

    async def _send(self, task_id: str, offset: int, piece: bytes) -> bool:
        body = [{"task_id": task_id, "offset": offset, "data": b64encode(piece).decode()}]
        try:
            reply = await self._transport.ask("POST", f"/{self._transport.worker_id}/logs", body)
        except DagmasterError as error:  # No task fails because of its log.
            raise LogUnavailable(f"the server does not accept logs: {error}") from error
        return bool(reply["logs"][0]["outcome"] == "accepted")

    def path_of(self, task_id: str) -> str:
        job_id, _, suffix = task_id.partition("_")
        node_id = quote(suffix.rpartition("_")[0], safe="")
        return f"{self._transport.url}/api/v1/jobs/{job_id}/nodes/{node_id}/logs"
