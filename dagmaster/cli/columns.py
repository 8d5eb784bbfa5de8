"""Tables that are readable at any width: identifying columns are never cut, explanations wrap or move below."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from dagmaster.cli.output import SYMBOLS

GAP = 2
INDENT = 4
NARROWEST_NAME = 20
# A narrower note is hard to read; it moves below its row.
NARROWEST_NOTE = 40


@dataclass(frozen=True, slots=True)
class Row:
    cells: Sequence[Text]
    note: Text


@dataclass(slots=True)
class Listing:
    """`note` titles the last column, such as an error, which wraps.

    Where the terminal is too narrow, the note stands below its row, the columns in `folds` continue on the next line,
    and then the last columns go below too. The first `fixed` columns always stay.
    """

    titles: Sequence[str]
    note: str | None = None
    folds: Sequence[str] = ()
    fixed: int = 3
    note_lines: int = 3
    rows: list[Row] = field(default_factory=list)

    def add(self, *cells: str, note: str = "") -> None:
        """Cells are markup; one for each title."""
        assert len(cells) == len(self.titles)
        self.rows.append(Row([Text.from_markup(cell) for cell in cells], Text.from_markup(note)))

    def print(self, screen: Console) -> None:
        if not screen.is_terminal:
            self._strip_symbols()
        widths, note_width = self._layout(screen.width)
        count = len(widths)
        title = [Text(self.note, style="dim")] if self.note and note_width else ()
        _print_row(screen, widths, [Text(title, style="dim") for title in self.titles[:count]], title)
        for row in self.rows:
            note = self._wrapped(screen, row.note, note_width or screen.width - INDENT)
            _print_row(screen, widths, row.cells[:count], note if note_width else ())
            for line in [*self._rest(row, count), *(() if note_width else note)]:
                screen.print(Text(" " * INDENT).append_text(line), soft_wrap=True)

    def _strip_symbols(self) -> None:
        """In pipes, a status is one word."""
        marks = tuple(f"{symbol} " for symbol, _ in SYMBOLS.values())
        self.rows = [
            Row([cell[len(marks[0]) :] if cell.plain.startswith(marks) else cell for cell in row.cells], row.note)
            for row in self.rows
        ]

    def _layout(self, most: int) -> tuple[list[int], int]:
        """The widths of the columns, and of the note beside them; 0 puts the note below."""
        widths = [
            max([cell_len(title), *(row.cells[place].cell_len for row in self.rows)])
            for place, title in enumerate(self.titles)
        ]
        if _total(widths) > most:
            widths = self._narrowed(widths, most)
        while _total(widths) > most and len(widths) > self.fixed:
            widths.pop()
        longest = max([cell_len(self.note or ""), *(row.note.cell_len for row in self.rows)])
        room = most - _total(widths) - GAP
        is_beside = len(widths) == len(self.titles) and room >= min(longest, NARROWEST_NOTE)
        return widths, room if is_beside else 0

    def _narrowed(self, widths: Sequence[int], most: int) -> list[int]:
        narrowed = list(widths)
        for place, title in enumerate(self.titles):
            if title in self.folds:
                least = min(NARROWEST_NAME, narrowed[place])
                narrowed[place] = max(narrowed[place] - max(_total(narrowed) - most, 0), least)
        return narrowed

    def _wrapped(self, screen: Console, note: Text, width: int) -> Sequence[Text]:
        if not note:
            return ()
        lines = list(note.wrap(screen, max(width, NARROWEST_NAME), overflow="fold"))
        if len(lines) > self.note_lines:
            last = lines[self.note_lines - 1]
            last.truncate(width - 1)
            last.append("…")
        return lines[: self.note_lines]

    def _rest(self, row: Row, count: int) -> Sequence[Text]:
        """The columns that do not fit, in one line."""
        parts = [
            Text.assemble((f"{title.lower()} ", "dim"), cell)
            for title, cell in zip(self.titles[count:], row.cells[count:], strict=True)
            if cell
        ]
        return [Text(" " * GAP).join(parts)] if parts else ()


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _print_row(screen: Console, widths: Sequence[int], cells: Sequence[Text], note: Sequence[Text]) -> None:
    folded = [_folded(cell, width) for cell, width in zip(cells, widths, strict=True)]
    for parts in zip_longest(*folded, note):
        line = Text()
        for part, width in zip(parts, (*widths, 0), strict=True):
            line.append_text(part or Text())
            line.append(" " * (width + GAP - (part.cell_len if part else 0)))
        line.rstrip()
        screen.print(line, soft_wrap=True)


def _folded(cell: Text, width: int) -> list[Text]:
    places = range(width, len(cell.plain), width) if cell.cell_len > width else ()
    return list(cell.divide(places))
