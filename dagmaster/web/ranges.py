"""Range requests for files, for readers of PMTiles and of cloud-optimised formats."""

import re
from collections.abc import Mapping
from typing import Final

from fastapi.responses import Response, StreamingResponse

from dagmaster.storage.source import Source

# A single range; a list of them is answered with the whole file, which is always allowed.
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class Unsatisfiable(Exception):
    """The file ends before the range begins."""


def parse_range(header: str, size: int) -> tuple[int, int] | None:
    """Start and exclusive end; None for the whole file. Raises Unsatisfiable."""
    match = _RANGE.fullmatch(header.strip())
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < int(first):
            return None
    if start >= end:
        raise Unsatisfiable
    return start, end


def range_response(source: Source, size: int, request_headers: Mapping[str, str], headers: dict[str, str]) -> Response:
    """`headers` has the ETag of the file. If the caller's `If-Range` differs, the response is the whole file."""
    headers = {**headers, "Accept-Ranges": "bytes"}
    is_current = request_headers.get("if-range", headers["ETag"]) == headers["ETag"]
    try:
        interval = parse_range(request_headers.get("range", ""), size) if is_current else None
    except Unsatisfiable:
        return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{size}"})
    start, end = interval or (0, size)
    headers["Content-Length"] = str(end - start)
    if interval is not None:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return StreamingResponse(source.read_range(start, end), 200 if interval is None else 206, headers)
