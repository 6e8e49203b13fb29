"""Runs without a GPU: ops are the work, and gloo's collectives run on threads of their own."""

from __future__ import annotations

from tests.builders import aligned, draw
from tests.what_if.replays import assert_identity, edges, interval, projected
from tracelens.trace import Run, make_run
from tracelens.what_if import whatif

GROUPS = {
    "backend": "gloo",
    "world_size": 2,
    "pg_config": [{"pg_name": "0", "pg_desc": "world", "ranks": [0, 1]}],
}
SIZES = 'shapes=[[4,8],[8,2]] types=["float","float"]'
ASKS = 'shapes=[[[6]],[]] types=["TensorList",""]'
SUMS = 'shapes=[[6]] types=["float"]'
RANK = f"""
    step 1                       | ------------------------
    op aten::mm {SIZES}          |  {{product}}
    op c10d::allreduce_ {ASKS}   |  {{asks}}
    scope gloo:all_reduce tid=7 {SUMS} |  {{sums}}
    op aten::add_                |                     --
"""


def ranks() -> Run:
    """Rank 0 multiplies from 1 to 5 and waits; rank 1 from 1 to 13, then both have their sum at 20."""
    drawn = (
        RANK.format(product="----", asks="    -", sums="     --------------"),
        RANK.format(product="------------", asks="            -", sums="             ------"),
    )
    return make_run(
        draw(aligned(text), distributedInfo=GROUPS | {"rank": number}) for number, text in enumerate(drawn)
    )


def test_collectives_of_the_host_are_asked_for_and_waited_for() -> None:
    recorded = assert_identity(ranks())
    assert edges(recorded, "launch") == [
        ("0:work aten::mm", "0:arrive gloo:all_reduce"),
        ("1:work aten::mm", "1:arrive gloo:all_reduce"),
    ]
    assert edges(recorded, "sync") == [
        ("0:leave gloo:all_reduce", "0:work aten::add_"),
        ("1:leave gloo:all_reduce", "1:work aten::add_"),
    ]


def test_the_rank_that_is_late_sets_the_pace() -> None:
    """At half of its time the product of rank 1 is over 6 columns earlier, and so is all behind it.

    That of rank 0 is over in time either way. At four times it takes 16 columns, 4 more than that of rank 1.
    """
    run = ranks()
    result = whatif(run, ["identity", "scale:aten::mm=0.5", "scale:*all*reduce*=2"])
    assert interval(result, "identity")[1] == 24
    assert interval(result, "scale:aten::mm=0.5")[1] == 18
    assert interval(result, "scale:*all*reduce*=2")[1] == 30  # 6 columns to move the data, not 14


def test_nobody_waits_for_a_gpu() -> None:
    run = ranks()
    result = whatif(run)
    reasons = {skip.subject: skip.reason for skip in result.skips}
    for name in ("no_blocking", "sync_free", "launch_free"):
        assert reasons[f"scenario {name}"].startswith("CPU-only run")
    assert "CPU-only trace" in result.doc
    assert projected(run, "identity") == 24


def test_a_collective_that_is_over_long_before_is_not_waited_for() -> None:
    """It ran for 3 of the 15 columns in which the thread was in no op: the host did something else."""
    text = f"""
        step 1                       | ------------------------
        op aten::mm {SIZES}          |  -
        op c10d::allreduce_ {ASKS}   |   -
        scope gloo:all_reduce tid=7 {SUMS} |    ---
        op aten::add_                |                 -
    """
    run = make_run([draw(aligned(text), distributedInfo=GROUPS | {"rank": 0})])
    assert edges(assert_identity(run), "sync") == []
    assert projected(run, "scale:*add_*=2") == 25


def test_work_beside_a_collective_is_no_waiting() -> None:
    """The collective is over before the op that runs beside it: nothing waits for it."""
    text = f"""
        step 1                       | --------------------
        op c10d::allreduce_ {ASKS}   |  -
        scope gloo:all_reduce tid=7 {SUMS} |   -----
        op aten::mm {SIZES}          |    --------------
        op aten::add_                |                   -
    """
    run = make_run([draw(aligned(text), distributedInfo=GROUPS | {"rank": 0})])
    assert edges(assert_identity(run), "sync") == []
