"""A running job: a live table on a terminal, lines otherwise."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dagmaster.cli.output import SYMBOLS, between, duration, first_line
from dagmaster.cli.progress import FanView, JobView, NodeView, Show
from dagmaster.model.outcome import Outcome
from dagmaster.model.states import NodeStatus

NAME_WIDTH, STATUS_WIDTH, TIME_WIDTH = 28, 10, 11
OTHER_COLUMNS = 2 + STATUS_WIDTH + TIME_WIDTH + 5  # with the space between them
NARROWEST_BAR, WIDEST_BAR = 8, 40
NUMBERS = 46  # beside a bar
LINES_AROUND = 6
# Shown first if there is no room for all nodes.
FIRST_SEEN = ("failed", "running", "retrying", "dispatched", "ready")
QUARTERS = 4
WORKED = frozenset({NodeStatus.COMPLETED, NodeStatus.FAILED, Outcome.COMPLETED_WITH_FAILURES})


@contextmanager
def live_view(console: Console) -> Iterator[Show]:
    # The last frame stays; other output appears above it.
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda view: live.update(render(view, console.width, console.height), refresh=True)


def render(view: JobView, width: int, height: int) -> RenderableType:
    visible, hidden = _choose(view.nodes, max(height - LINES_AROUND, 3))
    names = min(max((len(node.node_id) for node in visible), default=0), NAME_WIDTH)
    bar_width = max(width - names - OTHER_COLUMNS, NARROWEST_BAR)
    rows = Table.grid(padding=(0, 1, 0, 0))
    for columns in (2, names, STATUS_WIDTH):
        rows.add_column(width=columns, no_wrap=True, overflow="ellipsis")
    rows.add_column(width=TIME_WIDTH, no_wrap=True, justify="right")
    rows.add_column(width=bar_width, no_wrap=True, overflow="ellipsis")
    for node in visible:
        rows.add_row(*_cells(node, bar_width))
    parts: list[RenderableType] = [_headline(view), Text(), rows]
    if hidden:
        counts = Counter(node.shown_status for node in hidden)
        text = ", ".join(f"{number} {status}" for status, number in counts.items())
        parts.append(Text(f"    … and {text}", style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts, Text())


def _cells(node: NodeView, width: int) -> Iterator[RenderableType]:
    status = node.shown_status
    symbol, style = SYMBOLS[status]
    yield Text(f" {symbol}", style=style)
    yield Text(node.node_id, style="dim" if style == "dim" else "")
    yield Text(_word(status), style=style)
    yield Text("" if status == NodeStatus.SKIPPED else duration(node.seconds), style="dim")
    yield _detail(node, width)


def _word(status: str) -> str:
    """Without tolerated failures, which are shown next to it."""
    return str(NodeStatus.COMPLETED if status == Outcome.COMPLETED_WITH_FAILURES else status)


def _headline(view: JobView) -> Text:
    symbol, style = SYMBOLS[view.status]
    ahead = (f"{view.outlook.percent:.1f} %", view.outlook.left) if view.outlook and not view.has_ended else ()
    return Text.assemble(
        (f" {symbol} ", style),
        (view.workflow_id, "bold"),
        (f"   job {view.job_id}   ", "dim"),
        (str(view.status), style),
        (f"   {duration(view.seconds)}", "dim"),
        *((f"   {words}", "dim") for words in ahead if words),
        no_wrap=True,
        overflow="ellipsis",
    )


def _detail(node: NodeView, width: int) -> RenderableType:
    if node.fan is not None:
        return _fan(node.fan, width)
    if node.error and node.status is NodeStatus.FAILED:
        return Text(first_line(node.error), style="red")
    if node.attempt > 1:
        return Text(_attempt(node), style="yellow" if node.shown_status == "retrying" else "dim")
    return Text()


def _attempt(node: NodeView) -> str:
    text = f"attempt {node.attempt} of {node.attempts}"
    wait = between(node.now, node.not_before) if node.now and node.not_before else None
    if wait:
        text = f"{text} in {duration(wait)}"
    return f"{text} after: {first_line(node.error)}" if node.error and node.shown_status == "retrying" else text


def _fan(fan: FanView, width: int) -> RenderableType:
    bar_width = max(NARROWEST_BAR, min(width - NUMBERS, WIDEST_BAR))
    failed = fan.counts.get(NodeStatus.FAILED, 0)
    bar = ProgressBar(
        total=max(fan.total, 1),
        completed=fan.ended if fan.total else 1,
        width=bar_width,
        complete_style="red" if failed else "cyan",
        finished_style="red" if failed else "green",
    )
    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_column(width=bar_width)
    row.add_column(width=max(width - bar_width - 2, 1), no_wrap=True, overflow="ellipsis")
    row.add_row(bar, Text(_fan_text(fan), style="dim"))
    return row


def _fan_text(fan: FanView) -> str:
    counted = [
        (fan.counts.get(NodeStatus.RUNNING, 0), "running"),
        (fan.counts.get(NodeStatus.FAILED, 0), "failed"),
        (fan.counts.get(NodeStatus.SKIPPED, 0), "skipped"),
        (fan.retries, "retried"),
    ]
    words = [f"{number} {word}" for number, word in counted if number]
    return " · ".join([f"{fan.counts.get(NodeStatus.COMPLETED, 0):,}/{fan.total:,}", *words])


def _choose(nodes: Sequence[NodeView], room: int) -> tuple[Sequence[NodeView], Sequence[NodeView]]:
    """The visible nodes, in the workflow's order, and the hidden ones: active nodes first, then the last to end."""
    if len(nodes) <= room:
        return nodes, ()
    ended = [node.node_id for node in nodes if node.completed_at and node.shown_status not in FIRST_SEEN]
    waiting = [node.node_id for node in nodes if node.shown_status == NodeStatus.PENDING]
    moving = [node.node_id for status in FIRST_SEEN for node in nodes if node.shown_status == status]
    half = max((room - 1 - len(moving)) // 2, 0)
    order = [*moving, *waiting[:half], *reversed(ended), *waiting[half:]]
    visible = set(order[: room - 1])
    return [n for n in nodes if n.node_id in visible], [n for n in nodes if n.node_id not in visible]


@contextmanager
def plain_lines() -> Iterator[Show]:
    """One line for each change."""
    seen: dict[str, str] = {}

    def show(view: JobView) -> None:
        for node in view.nodes:
            line = _line(node)
            if line and seen.get(node.node_id) != line:
                seen[node.node_id] = line
                is_over = node.shown_status in WORKED and node.seconds is not None
                timed = f"{line} ({duration(node.seconds)})" if is_over else line
                typer.echo(f"{node.node_id}: {timed}")

    yield show


def _line(node: NodeView) -> str | None:
    """The state of the node in words, printed when it changes; None for states that pass quickly."""
    status = node.shown_status
    if status in (NodeStatus.PENDING, NodeStatus.READY, NodeStatus.DISPATCHED):
        return None
    if status == NodeStatus.RUNNING and node.fan is not None:
        reached = node.fan.ended * QUARTERS // max(node.fan.total, 1)
        return f"{reached * 100 // QUARTERS} % of {node.fan.total:,} done"
    if node.fan is not None and (failed := node.fan.counts.get(NodeStatus.FAILED, 0)):
        return f"{_word(status)}, {failed:,} of {node.fan.total:,} failed"
    if status == NodeStatus.FAILED and node.error:
        return f"failed: {node.error}"
    if node.attempt > 1:
        line = f"{status}, attempt {node.attempt} of {node.attempts}"
        return f"{line}, after: {first_line(node.error)}" if node.error and status == "retrying" else line
    return status
