"""Explanations of nodes and jobs: the right reason first, in one sentence, with all details in the data."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import orjson
import pytest
from dynamic_nodes_bench import add, node
from engine_bench import AT_ONCE, JOB, NO_RETRY, Bench, choose, end, fan_in, fan_out, task

from dagmaster.engine.change_set import Rules
from dagmaster.explain.explanation import explain_job, explain_node
from dagmaster.explain.facts import Consumer, Explanation, Facts, Kind, OwnerFacts, Progress, QueueFacts
from dagmaster.explain.sentences import names, span
from dagmaster.model.retry import RetryPolicy
from dagmaster.model.states import NODE_TERMINAL

ALIVE = OwnerFacts("one", 2.0, is_alive=True)
FACTS = Facts(ALIVE, orchestrators=1, threshold_seconds=120)
SLOWLY = RetryPolicy(max_attempts=3, initial_delay_seconds=20)


def facts_of(bench: Bench, **changes: Any) -> Facts:
    ahead = {row.node_id: place for place, row in enumerate(bench.store.waiting.values())}
    holders = {row.node_id: row.worker_id or "" for row in bench.store.running.values()}
    return replace(FACTS, ahead=ahead, holders=holders, closed_queues=bench.closed_queues, **changes)


def why(bench: Bench, node_id: str | None = None, **changes: Any) -> Explanation:
    """From the rows, as everybody but the owner sees it."""
    job, facts = bench.store.load(), facts_of(bench, **changes)
    job.error, job.completed_at = bench.store.job.error, bench.store.job.completed_at
    explanation = (
        explain_job(job, facts, bench.now) if node_id is None else explain_node(job, node_id, facts, bench.now)
    )
    assert orjson.loads(orjson.dumps(explanation.data)) == explanation.data
    assert explanation.sentence.count("\n") == 0 and explanation.sentence.endswith(".")
    return explanation


def text_of(bench: Bench, node_id: str | None = None, **changes: Any) -> str:
    return why(bench, node_id, **changes).sentence


def also(explanation: Explanation) -> list[str]:
    return [reason["kind"] for reason in explanation.data["also"]]


def join(**nodes: Any) -> Bench:
    return Bench(a=task(), b=task(), **nodes).start()


# Other nodes.


def test_a_node_waits_for_each_undecided_member_of_all_of():
    bench = join(merge=task("a", "b"), end=end("merge"))
    assert text_of(bench, "merge") == "Node `merge` waits for `a` and `b`, which are queued."
    bench.begin("a")
    assert text_of(bench, "merge") == "Node `merge` waits for `a` (running) and `b` (queued)."
    bench.complete("a")
    assert text_of(bench, "merge") == "Node `merge` waits for `b`, which is queued."
    assert text_of(bench, "end") == "Node `end` waits for `merge`, which is waiting."


def test_a_node_waits_for_any_of_until_one_completes():
    bench = join(merge=task(any_of=("a", "b")), x=task(), both=task("x", any_of=("a", "b")), end=end("merge", "both"))
    assert text_of(bench, "merge") == "Node `merge` waits for one of `a` and `b`, which are queued."
    assert text_of(bench, "both") == "Node `both` waits for `x` (queued) and for one of `a` (queued) and `b` (queued)."
    bench.complete("a")
    explanation = why(bench, "both")
    assert explanation.sentence == "Node `both` waits for `x`, which is queued."
    assert (explanation.data["any_of"], explanation.data["will_be_skipped"]) == ([], False)


def test_a_node_that_will_be_skipped_is_explained():
    nodes: dict[str, Any] = {
        "c": choose("inputs.n", is_3=("x",), default=("y",)),
        "x": task(),
        "y": task(),
        "slow": task(),
    }
    bench = Bench({"n": 3}, **nodes, lost=task("slow", any_of=("y",)), end=end("lost", "x")).start()
    explanation = why(bench, "lost")
    assert explanation.sentence == "Node `lost` waits for `slow` (queued) and will then be skipped."
    assert explanation.data["will_be_skipped"] is True


def test_successors_of_a_fan_out_wait_for_its_children():
    bench = Bench({"n": [1, 2, 3]}, f=fan_out("{{ inputs.n }}"), g=fan_in("f"), end=end("g")).start()
    bench.complete("f__0")
    explanation = why(bench, "g")
    assert explanation.sentence == "Node `g` waits for `f`, which is expanded with 2 of 3 children open."
    assert explanation.data["all_of"] == [{"node_id": "f", "status": "completed", "children": 3, "children_open": 2}]
    assert text_of(bench, "f").endswith("; 2 of its 3 children are still open.")


def test_an_expanding_fan_out_counts_its_children():
    bench = Bench({"n": [1] * 5}, Rules(slice_size=2), f=fan_out("{{ inputs.n }}"), end=end("f"))
    bench.expands = False
    bench.start()
    assert text_of(bench, "f") == "Node `f` is being expanded: 2 of its 5 children are created."
    assert text_of(bench, "end") == "Node `end` waits for `f`, which is running."


# Queues and workers.


@pytest.mark.parametrize(
    ("consumers", "service"),
    [
        ((), "no worker consumes this queue"),
        ((Consumer("w", frozenset({"x"}), 1, 0),), "its only worker does not have the handler `work`"),
        (
            (Consumer("v", frozenset(), 1, 0), Consumer("w", frozenset({"x"}), 1, 0)),
            "none of its 2 workers has the handler `work`",
        ),
        ((Consumer("w", None, 1, 1),), "the only worker that takes such tasks is busy"),
        ((Consumer("w", None, 2, 1, stuck=1),), "the only worker that takes such tasks is busy"),
        ((Consumer("w", None, 1, 0, is_taking=False),), "its only worker takes no more tasks"),
        (tuple(Consumer(w, None, 1, 0, is_taking=False) for w in "vw"), "all 2 workers take no more tasks"),
        ((Consumer("v", None, 1, 0, is_taking=False), Consumer("w", None, 1, 0)), "1 of 1 worker for it is free"),
        ((Consumer("v", None, 1, 1), Consumer("w", frozenset({"work"}), 2, 2)), "all 2 workers for it are busy"),
        ((Consumer("v", None, 1, 1), Consumer("w", frozenset({"work"}), 2, 1)), "1 of 2 workers for it is free"),
    ],
)
def test_a_queued_task_describes_the_workers_of_its_queue(consumers: tuple[Consumer, ...], service: str):
    bench = join(end=end("a", "b"))
    queues = {"tasks": QueueFacts(2, None, consumers)}
    assert text_of(bench, "a", queues=queues) == f"Node `a` is next in queue `tasks`; {service}."
    assert text_of(bench, "b", queues=queues) == f"Node `b` waits in queue `tasks` after 1 other task; {service}."


def test_a_task_of_a_program_that_has_stopped_is_not_promised_a_worker():
    bench = Bench(a=task(), end=end("a")).start()
    assert text_of(bench, "a", queues={"tasks": QueueFacts(1, None, (), is_local=True)}) == (
        "Node `a` is next in queue `tasks`; "
        "the program that runs this job has stopped; unless it continues, the job will be cancelled."
    )


def test_a_full_queue_is_named_with_its_depth_and_limit():
    bench = Bench(a=task(), end=end("a")).close_queue().start()
    explanation = why(bench, "a", queues={"tasks": QueueFacts(1200, 1000)})
    assert explanation.sentence == (
        "Node `a` is not dispatched because queue `tasks` is full (1,200 tasks waiting, the limit is 1,000)."
    )
    assert explanation.kind is Kind.BACK_PRESSURE


def test_max_parallel_names_the_running_children():
    bench = Bench({"n": [1] * 9}, f=fan_out("{{ inputs.n }}", max_parallel=6), end=end("f")).start()
    explanation = why(bench, "f__7")
    expected = "held by `f__0`, `f__1`, `f__2`, `f__3` and 2 more."
    assert explanation.sentence == f"Node `f__7` waits for one of 6 slots (max_parallel), {expected}"
    assert len(explanation.data["held_by"]) == 6


def test_a_running_task_names_its_worker_and_its_start():
    bench = Bench(a=task(timeout_seconds=600), end=end("a")).start()
    bench.begin("a")
    bench.now += timedelta(seconds=90)
    running = "Node `a` has been running for 1 min 30 s on worker worker"
    assert text_of(bench, "a") == f"{running} and may run until 2030-01-01 00:10:00 UTC."
    sentence = text_of(bench, "a", progress={"a": Progress(40.0, "tile 4 of 10")})
    assert sentence == f"{running} (40 %: tile 4 of 10) and may run until 2030-01-01 00:10:00 UTC."


# Time, pauses and owners.


def test_a_retry_shows_its_failures_and_its_next_time():
    bench = Bench(a=task(retry=SLOWLY), end=end("a")).start()
    bench.fail("a")
    bench.now += timedelta(seconds=6)
    explanation = why(bench, "a", errors={"a": "connection refused\nand a stack"})
    assert explanation.sentence == (
        "Node `a` failed once (last: connection refused) and will be retried at 2030-01-01 00:00:20 UTC, in 14 s."
    )
    bench.now += timedelta(seconds=14)
    assert why(bench, "a").kind is Kind.ABOUT_TO_RUN


def test_a_pause_is_the_first_reason():
    bench = join(end=end("a", "b"))
    bench.pause()
    bench.now += timedelta(minutes=3)
    assert text_of(bench) == f"Job {JOB} was paused by ann 3 min ago."
    explanation = why(bench, "a", owner=OwnerFacts("one", 300.0))
    assert explanation.sentence == f"Node `a` is blocked: job {JOB} was paused by ann 3 min ago."
    assert also(explanation) == ["queued", "no_owner"]


def test_all_simultaneous_reasons_are_listed():
    bench = Bench({"n": [1, 2, 3]}, f=fan_out("{{ inputs.n }}", max_parallel=1, child={"retry": SLOWLY}), end=end("f"))
    bench.start()
    bench.fail("f__0")
    bench.close_queue()
    bench.pause()
    explanation = why(bench, "f__0", owner=OwnerFacts("one", 300.0))
    assert explanation.kind is Kind.PAUSED
    assert also(explanation) == ["no_owner", "retry", "held_by_max_parallel", "back_pressure"]


@pytest.mark.parametrize(
    ("owner", "orchestrators", "sentence"),
    [
        (OwnerFacts("one", 9.0), 0, "No orchestrator is running."),
        (OwnerFacts(), 2, f"Job {JOB} has no owner; an orchestrator adopts it at its next check."),
        (
            OwnerFacts("one", 95.0),
            2,
            f"Job {JOB} has no living owner: orchestrator one last beat 1 min 35 s ago; another one takes over after "
            "2 min.",
        ),
        (
            OwnerFacts("one", 150.0),
            2,
            f"Job {JOB} has no living owner: orchestrator one last beat 2 min 30 s ago; another one takes over at its "
            "next check.",
        ),
    ],
)
def test_a_job_without_a_live_owner_is_explained(owner: OwnerFacts, orchestrators: int, sentence: str):
    bench = join(end=end("a", "b"))
    assert text_of(bench, owner=owner, orchestrators=orchestrators) == sentence


def test_a_dead_owner_does_not_hide_other_reasons():
    bench = join(merge=task("a", "b"), end=end("merge"))
    for node_id, kind in (("merge", Kind.WAITING_FOR_NODES), ("a", Kind.QUEUED)):
        explanation = why(bench, node_id, owner=OwnerFacts("one", 300.0))
        assert (explanation.kind, also(explanation)) == (kind, ["no_owner"])


def test_a_claimed_task_is_about_to_run_unless_its_start_is_overdue():
    bench = join(end=end("a", "b"))
    bench.store.claim(f"{JOB}_a_0", "w", bench.now)
    assert text_of(bench, "a") == "Node `a` was taken by worker w; its owner is about to record that."
    assert why(bench, "a", owner=OwnerFacts("one", 300.0)).kind is Kind.NO_OWNER


# The end.


def test_an_ended_node_shows_why_and_its_cause():
    nodes: dict[str, Any] = {
        "c": choose("inputs.n", is_3=("x",), default=("y",)),
        "x": task(retry=NO_RETRY),
        "y": task(),
    }
    bench = Bench({"n": 3}, **nodes, z=task("y"), w=task(), last=task("x"), end=end("last", "z", "w")).start()
    bench.now += timedelta(seconds=5)
    bench.fail("x", "disk full")
    skipped = "was skipped because `c` took the branch `is_3`, which does not lead to it."
    assert text_of(bench, "y") == f"Node `y` {skipped}"
    assert text_of(bench, "z") == f"Node `z` {skipped}"
    assert text_of(bench, "x") == "Node `x` failed permanently after 1 attempt: disk full."
    assert text_of(bench, "w") == f"Node `w` was stopped because job {JOB} failed (node x failed: disk full)."
    last = why(bench, "last", owner=OwnerFacts())
    assert last.sentence == f"Node `last` was skipped because job {JOB} failed (node x failed: disk full)."
    assert last.data["cause"] == ["x"]
    of_job = why(bench, owner=OwnerFacts())
    assert of_job.sentence == f"Job {JOB} failed at 2030-01-01 00:00:05 UTC after 5 s: node x failed: disk full."
    assert (of_job.kind, of_job.data["cause"]) == (Kind.ENDED, ["x"])


def test_an_ended_fan_out_tells_how_its_children_ended():
    bench = Bench(f=fan_out([1] * 4, max_parallel=2, child={"retry": NO_RETRY}), end=end("f")).start()
    bench.begin("f__0")
    bench.begin("f__1")
    assert text_of(bench, "f").endswith("; 4 of its 4 children are still open.")
    bench.fail("f__0", "no luck")
    sentence = text_of(bench, "f")
    assert sentence.startswith("Node `f` expanded at ")
    assert sentence.endswith("; of its 4 items 1 failed, 1 stopped with the job and 2 never started.")


def test_the_duration_of_a_job_excludes_pauses_and_the_time_before_it_was_reopened():
    bench = Bench(a=task(retry=NO_RETRY), end=end("a")).start()
    bench.begin("a")
    bench.wait(1)
    bench.pause()
    bench.wait(10)
    bench.unpause()
    bench.wait(2)
    bench.fail("a", "no luck")
    assert (bench.data(None, "job_failed") or {})["duration_seconds"] == 3
    assert " after 3 s: " in text_of(bench, owner=OwnerFacts())
    bench.wait(100)
    bench.retry()
    bench.begin("a")
    bench.wait(4)
    bench.pause()
    bench.wait(1000)
    bench.cancel()
    assert " after 7 s: " in text_of(bench, owner=OwnerFacts())


def test_a_skipped_node_added_by_a_finalizer_shows_why():
    bench = Bench(chains={"finally": ("clean",)}, a=task(retry=NO_RETRY), end=end("a"), clean=task()).start()
    bench.fail("a")
    behind = [node(f"clean.{number}", f"clean.{number - 1}") for number in range(1, 1500)]
    add(bench, node("clean.0"), *behind, adder="clean")
    bench.fail("clean.0")
    assert text_of(bench, "clean.1499") == "Node `clean.1499` was skipped because `clean.0` before it failed."
    bench.complete("clean")
    bench.retry()
    again = "Node `clean.0` was skipped because `clean`, which added it before, has not added it again."
    assert text_of(bench, "clean.0") == again
    bench.wait(1)
    bench.complete("a")
    bench.complete("clean")
    assert text_of(bench, "clean.0") == again


def test_a_failed_job_with_an_owner_is_about_to_be_retried():
    bench = Bench(a=task(retry=NO_RETRY), end=end("a")).start()
    bench.fail("a")
    assert why(bench).kind is Kind.ABOUT_TO_RUN
    assert why(bench, owner=OwnerFacts("one", 300.0)).kind is Kind.NO_OWNER
    assert why(bench, owner=OwnerFacts()).kind is Kind.ENDED


def test_cancelled_and_completed_jobs_are_explained():
    bench = join(end=end("a", "b"))
    bench.cancel()
    assert text_of(bench, owner=OwnerFacts()) == (
        f"Job {JOB} was cancelled at 2030-01-01 00:00:00 UTC after 0 ms: changed my mind."
    )
    assert text_of(bench, "end") == f"Node `end` was skipped because job {JOB} was cancelled (changed my mind)."
    bench = Bench(a=task(), end=end("a")).start()
    bench.complete("a")
    assert text_of(bench, owner=OwnerFacts()) == f"Job {JOB} completed at 2030-01-01 00:00:00 UTC after 0 ms."


# The job as a whole.


def test_a_job_names_the_nodes_that_block_all_others():
    bench = Bench(
        {"n": [1] * 10}, f=fan_out("{{ inputs.n }}", max_parallel=3), g=fan_in("f"), after=task("g"), end=end("after")
    ).start()
    explanation = why(bench)
    assert explanation.sentence == (
        f"Job {JOB} waits for `f` (3 of 10 children): `f__0` is next in queue `tasks`; no worker consumes this queue."
    )
    assert explanation.data["stands"][0]["nodes"] == ["f__0", "f__1", "f__2"]


def test_a_queue_without_workers_comes_before_running_tasks():
    lone = task().model_copy(update={"queue": "gpu"})
    bench = Bench(a=task(), lone=lone, end=end("a", "lone")).start()
    bench.begin("a")
    served = {"tasks": QueueFacts(0, None, (Consumer("w", None, 1, 1),))}
    explanation = why(bench, queues=served)
    assert "waits for `lone`" in explanation.sentence and "no worker consumes this queue" in explanation.sentence
    assert [reason["node_id"] for reason in explanation.data["also"]] == ["a"]
    free = {"gpu": QueueFacts(1, None, (Consumer("w", None, 1, 0),))}
    assert f"Job {JOB} waits for `a`, which has been running" in text_of(bench, queues=served | free)


def test_a_pending_job_is_about_to_start():
    bench = Bench(a=task(retry=AT_ONCE), end=end("a"))
    assert text_of(bench) == f"Job {JOB} is about to start: its owner acts within a moment."
    assert why(bench, "start").kind is Kind.ABOUT_TO_RUN
    assert text_of(bench, "a") == "Node `a` waits for `start`, which is waiting."


def test_every_open_node_has_a_reason_and_every_kind_has_a_sentence():
    bench = join(merge=task("a", "b"), end=end("merge"))
    for row in bench.store.nodes.values():
        explanation = why(bench, row.node_id)
        assert (explanation.kind is Kind.ENDED) == (row.status in NODE_TERMINAL)
        assert explanation.data["node_id"] == row.node_id


def test_names_and_times_are_shortened():
    assert (names(["a"]), names(["a", "b"])) == ("`a`", "`a` and `b`")
    assert names(["a", "b", "c", "d", "e", "f"]) == "`a`, `b`, `c`, `d` and 2 more"
    assert (span(timedelta(seconds=95)), span(timedelta(seconds=-5))) == ("1 min 35 s", "0 ms")
