"""How the death of a handler process is described."""

from pathlib import Path

import pytest

from dagmaster.worker.processes.outcome import Death, outcome_of
from dagmaster.worker.processes.system import oom_kills

KILLED = 9
GB = 1024**3


@pytest.mark.parametrize(
    ("counts", "ending", "first_type"),
    [
        ((1, 2), "killed by the kernel because it ran out of memory (peak 1.9 GB)", "MemoryError"),
        ((None, None), "killed by the kernel, most likely because it ran out of memory (peak 1.9 GB)", "MemoryError"),
        ((1, 1), "killed with SIGKILL, but not for lack of memory (peak 1.9 GB)", "ProcessDied"),
    ],
)
def test_a_kill_counts_as_out_of_memory_if_the_kernel_counted_one(
    counts: tuple[int | None, int | None], ending: str, first_type: str
) -> None:
    outcome = outcome_of(Death(KILLED, int(1.9 * GB), 5.0), 1.5, counts)
    assert outcome.result.error_message == f"the handler process was {ending}"
    assert outcome.result.error_types == (first_type, "Exception") and not outcome.result.permanent
    assert outcome.usage is not None and outcome.usage.cpu_seconds == 3.5


@pytest.mark.parametrize(
    ("status", "ending"),
    [(3 << 8, "ended with exit code 3"), (11, "crashed with SIGSEGV"), (11 | 128, "crashed with SIGSEGV")],
)
def test_the_exit_status_is_described(status: int, ending: str) -> None:
    message = outcome_of(Death(status), 0, (0, 0)).result.error_message
    assert message == f"the handler process {ending}"


def control_groups(folder: Path, lines: str, files: dict[str, str]) -> int | None:
    groups = folder / "groups"
    groups.write_text(lines)
    for name, content in files.items():
        (folder / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "root" / name).write_text(content)
    return oom_kills(folder / "root", groups)


def test_the_oom_counter_is_found_in_either_cgroup_version(tmp_path: Path) -> None:
    second = "low 0\noom 3\noom_kill 2\noom_group_kill 0\n"
    first = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"
    hybrid = {"memory/a/b/memory.oom_control": first, "memory.events": second}
    assert control_groups(tmp_path, "4:cpu,memory:/a/b\n0::/\n", hybrid) == 5
    assert control_groups(tmp_path, "0::/c\n", {"c/memory.events": second}) == 2


def test_in_a_container_the_counter_is_at_the_root(tmp_path: Path) -> None:
    assert control_groups(tmp_path, "0::/../of/the/host\n", {"memory.events": "oom_kill 1\n"}) == 1


def test_without_cgroups_there_is_no_counter(tmp_path: Path) -> None:
    assert oom_kills(tmp_path, tmp_path / "nothing") is None
