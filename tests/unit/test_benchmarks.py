"""The arithmetic and report of the benchmarks; `make bench` does the measuring."""

import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from benchmarks import __main__ as command
from benchmarks import floor_jobs, w1_latency, w2_chain, w3_fan, w4_throughput
from benchmarks.costs import spent
from benchmarks.figures import Bar, Figure, Sample
from benchmarks.floor_statements import STEP, STEP_EVENTS
from benchmarks.place import Place
from benchmarks.report import BEGINS, ENDS, missed, table, to_json, write_into
from benchmarks.scale import FULL, QUICK, Scale
from benchmarks.submitter import look_seconds
from benchmarks.w13_large_raster import Superblocks
from benchmarks.workflows import UNATTENDED, chain, fan
from dagmaster.model.graph import NodeType

MET = Figure("W1", "quick enough", 4.0, "ms", (3.0, 5.0), 1.0, Bar(8))
MISSED = Figure("W1", "too slow", 9.0, "ms", None, 1.0, Bar(8))
PLAIN = Figure("Idle", "at rest", 0.2, "%", bar=Bar(1))


class TestSample:
    def test_the_median_ignores_one_outlier(self) -> None:
        assert Sample.of([1, 2, 100]).median == 2

    def test_the_spread_is_the_interquartile_range(self) -> None:
        assert Sample.of([1, 2, 3, 4, 5]).spread == (2, 4)

    def test_one_value_has_no_spread(self) -> None:
        assert Sample.of([1]).spread is None

    def test_seconds_are_scaled_to_milliseconds(self) -> None:
        assert Sample.of([0.5], scale=1000).median == 500

    def test_percentiles_lie_between_the_values(self) -> None:
        assert Sample.of(range(101)).percentile(95) == 95


class TestFigure:
    def test_a_limit_with_a_floor_applies_to_the_ratio(self) -> None:
        assert MET.ratio == 4
        assert MET.verdict == "met"
        assert MISSED.verdict == "MISSED"

    def test_a_limit_without_a_floor_applies_to_the_value(self) -> None:
        assert PLAIN.ratio is None
        assert PLAIN.verdict == "met"
        assert Figure("W3", "memory", 701, "MB", bar=Bar(700)).verdict == "MISSED"

    def test_a_rate_must_reach_a_share_of_the_floor(self) -> None:
        bar = Bar(0.4, at_least=True)
        assert Figure("W4", "rate", 40, "tasks/s", floor=100, bar=bar).verdict == "met"
        assert Figure("W4", "rate", 39, "tasks/s", floor=100, bar=bar).verdict == "MISSED"

    def test_a_figure_without_a_limit_has_no_verdict(self) -> None:
        assert Figure("W1", "for comparison", 1, "ms").verdict == ""

    def test_only_missed_limits_count_as_missed(self) -> None:
        assert missed([MET, MISSED, PLAIN]) == [MISSED]


class TestReport:
    def test_all_lines_of_the_table_have_the_same_length(self) -> None:
        lines = table([MET, MISSED, PLAIN]).splitlines()
        assert len(lines) == 5
        assert len({len(line) for line in lines}) == 1

    def test_a_line_has_figure_spread_floor_ratio_limit_and_verdict(self) -> None:
        cells = [cell.strip() for cell in table([MET]).splitlines()[2].strip("|").split("|")]
        assert cells == ["W1", "quick enough", "4 ms", "3 to 5", "1 ms", "4.00", "≤ 8", "met"]

    def test_a_limit_without_a_floor_shows_its_unit(self) -> None:
        assert "≤ 1 %" in table([PLAIN])

    def test_large_numbers_lose_their_fraction(self) -> None:
        assert "12,346 tasks/s" in table([Figure("W4", "rate", 12345.6, "tasks/s")])

    def test_json_carries_ratio_and_verdict(self) -> None:
        read = orjson.loads(to_json([MET], "here and now"))
        assert read["about"] == "here and now"
        assert read["figures"][0] | {"ratio": 4.0, "verdict": "met"} == read["figures"][0]

    def test_the_page_keeps_the_text_around_the_figures(self, tmp_path: Path) -> None:
        page = tmp_path / "page.md"
        page.write_text(f"before\n{BEGINS}\nold\n{ENDS}\nafter\n")
        write_into(page, "new")
        write_into(page, "newer")
        assert page.read_text() == f"before\n{BEGINS}\nnewer\n{ENDS}\nafter\n"

    def test_a_page_without_marks_is_refused(self, tmp_path: Path) -> None:
        page = tmp_path / "page.md"
        page.write_text("no marks")
        with pytest.raises(ValueError, match="no place for the figures"):
            write_into(page, "new")


class TestWorkloads:
    def test_w1_compares_with_one_round_trip(self) -> None:
        _, p50, p95 = w1_latency.figures([0.008, 0.010, 0.012], [0.001, 0.002, 0.003])
        assert (p50.value, p50.floor, p50.ratio, p50.verdict) == (10, 2, 5, "met")
        assert p95.verdict == ""

    def test_w2_divides_the_chain_by_its_steps(self) -> None:
        _, step = w2_chain.separate_figures([0.4, 0.4], [0.002], steps=40)
        assert (step.value, step.ratio, step.verdict) == (10, 5, "met")

    def test_w2_in_one_process_compares_with_as_many_bare_commits(self) -> None:
        *_, chained = w2_chain.one_process_figures([0.16], [0.1], [0.001], steps=40)
        assert chained.ratio == pytest.approx(1.6)
        assert chained.verdict == "MISSED"

    def test_w3_compares_each_size_with_the_previous_one(self) -> None:
        small, large, memory = w3_fan.figures({1_000: [1.0], 10_000: [14.0, 12.0, 13.0]}, peak_mb=200)
        assert small.verdict == ""
        assert (large.ratio, large.verdict) == (13, "met")
        assert memory.verdict == "met"

    def test_w4_takes_the_faster_script_as_its_floor(self) -> None:
        times = w4_throughput.Times(product=[6.0], submit=[0.1], alone=[3.0], split=[2.0], parallel=[1.0])
        times.costs = Counter({"orchestrator": 0.9, "PostgreSQL for listener": 0.001})
        _, _, parallel, product, _, cost = w4_throughput.figures(times, jobs=1000)
        assert (product.value, product.floor) == (500, 1500)
        assert product.verdict == "MISSED"
        assert parallel.verdict == ""
        assert (cost.label, cost.value) == ("processor time per task: orchestrator", pytest.approx(300))

    def test_costs_are_differences(self) -> None:
        assert spent({"a": 1.0}, {"a": 3.5, "b": 1.0}) == {"a": 2.5, "b": 1.0}

    def test_the_poll_interval_follows_the_elapsed_time(self) -> None:
        assert look_seconds(0.0) == 0.0005
        assert look_seconds(1.0) == 0.01
        assert look_seconds(1000.0) == 0.05

    def test_w13_counts_superblocks_that_are_complete_and_those_that_are_made_again(self, tmp_path: Path) -> None:
        first = tmp_path / "a" / "superblocks"
        first.mkdir(parents=True)
        superblocks = Superblocks(tmp_path)
        for name in ("0-0-0.json", "0-0-1.json", "0-0-1.bin", ".0-0-2.json.77"):
            (first / name).touch()
        assert (superblocks.look(), superblocks.repeated) == (2, 0)
        (tmp_path / "a").rename(tmp_path / "b")
        assert (superblocks.look(), superblocks.repeated) == (2, 0), "the next attempt takes the folder over"
        os.utime(tmp_path / "b" / "superblocks" / "0-0-1.json", ns=(1, 1))
        assert (superblocks.look(), superblocks.repeated) == (2, 1)


class TestWhatIsMeasured:
    def test_what_takes_minutes_and_gigabytes_is_not_run_by_default(self) -> None:
        assert {"w13", "w14", "floor"} == set(command.WORKLOADS) - set(command.BY_DEFAULT)

    def test_a_chain_has_its_steps_between_start_and_end(self) -> None:
        assert list(chain(3).nodes) == ["START", "n0", "n1", "n2", "END"]

    def test_a_fan_can_wait_in_a_queue_without_workers(self) -> None:
        spread = fan(UNATTENDED).nodes["spread"]
        assert spread.type is NodeType.FAN_OUT
        assert spread.fan_out is not None
        assert spread.fan_out.child.queue == UNATTENDED

    def test_the_bare_step_writes_the_events_that_it_claims(self) -> None:
        assert STEP.count(b"'node_") == STEP_EVENTS

    def test_every_floor_task_belongs_to_a_step(self) -> None:
        row = floor_jobs._step_row(7, 1)
        assert (row["task_id"], row["next_task"]) == ("7_n1_0", "7_n2_0")
        assert floor_jobs._split("7_n1_0") == {"task_id": "7_n1_0", "job_id": 7, "node_id": "n1"}

    def test_chunks_contain_all_items(self) -> None:
        assert [len(chunk) for chunk in floor_jobs._chunks(range(450), 200)] == [200, 200, 50]

    def test_quick_runs_are_smaller_in_every_size(self) -> None:
        assert QUICK.throughput_jobs < FULL.throughput_jobs
        assert max(QUICK.fan_sizes) < max(FULL.fan_sizes)
        assert QUICK.repetitions >= 2  # A spread needs two.


class FakePlace:
    def describe(self) -> str:
        return "no server"


Measure = Callable[[Place, Scale], Awaitable[list[Figure]]]


@pytest.fixture
def scales(monkeypatch: pytest.MonkeyPatch) -> list[Scale]:
    """Replaces the measurement; records the requested scales."""
    requested: list[Scale] = []

    def giving(figure: Figure) -> Measure:
        async def measure(place: Place, scale: Scale) -> list[Figure]:
            requested.append(scale)
            return [figure]

        return measure

    @contextmanager
    def nowhere(parent: Path | None) -> Iterator[FakePlace]:
        yield FakePlace()

    monkeypatch.setattr(command, "WORKLOADS", {"w1": giving(MISSED), "w4": giving(MET)})
    monkeypatch.setattr(command, "BY_DEFAULT", ("w1", "w4"))
    monkeypatch.setattr(command, "embedded_place", nowhere)
    return requested


class TestCommand:
    def test_a_quick_run_reports_everything_and_judges_nothing(
        self, scales: list[Scale], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert command.main(["--quick"]) == 0
        assert scales == [QUICK, QUICK]
        printed = capsys.readouterr().out
        assert "too slow" in printed and "quick enough" in printed
        assert "too small to judge by" in printed

    def test_a_full_run_fails_when_a_limit_is_missed(self, scales: list[Scale]) -> None:
        assert command.main([]) == 1
        assert scales == [FULL, FULL]

    def test_only_the_named_workloads_are_run(self, scales: list[Scale], capsys: pytest.CaptureFixture[str]) -> None:
        assert command.main(["w4"]) == 0
        assert "too slow" not in capsys.readouterr().out

    def test_an_unknown_workload_is_named(self, scales: list[Scale], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            command.main(["w9"])
        assert "there is no workload w9; there are w1, w4" in capsys.readouterr().err

    def test_the_figures_are_written_to_the_requested_file(self, scales: list[Scale], tmp_path: Path) -> None:
        page, data = tmp_path / "page.md", tmp_path / "figures.json"
        page.write_text(f"{BEGINS}{ENDS}")
        command.main(["--json", str(data), "--markdown", str(page)])
        assert "no server" in page.read_text() and "too slow" in page.read_text()
        assert len(orjson.loads(data.read_bytes())["figures"]) == 2
