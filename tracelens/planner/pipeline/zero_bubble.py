"""Zero-bubble schedules (arXiv:2401.10241): I and W are the input and weight gradients of a backward.

Other stages wait only for I; W fills idle time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from tracelens.planner.pipeline.schedule import FORWARD, INPUT, WEIGHT, Pass, Schedule, round_robin, singles


def zb_h1(stages: int, microbatches: int) -> Schedule:
    """ZB-H1: warm-up as in 1F1B; the W of a micro-batch follows the I of the micro-batch `stage` later.

    No stage holds more than p micro-batches, like the first stage of 1F1B. Each idles (p - 1) (F + I - W) if
    the three take about equally long.
    """
    orders = [_with_delayed_weights(stages - stage, stage, microbatches) for stage in range(stages)]
    return Schedule("zb-h1", round_robin(stages, 1), microbatches, tuple(map(singles, orders)))


def zb_h2(stages: int, microbatches: int) -> Schedule:
    """ZB-H2: 2 (p - stage) - 1 warm-up forwards, W delayed by 2 `stage`; no stage holds more than 2 p - 1.

    With F = I = W no stage idles between its first and last pass, but steps must not start on all stages at
    the same time.
    """
    orders = [
        _with_delayed_weights(2 * (stages - stage) - 1, 2 * stage, microbatches) for stage in range(stages)
    ]
    return Schedule("zb-h2", round_robin(stages, 1), microbatches, tuple(map(singles, orders)))


def _with_delayed_weights(warm_up: int, delay: int, microbatches: int) -> list[Pass]:
    """Warm-up forwards; then I, the W of `delay` micro-batches before, and F in turn; then remaining W."""
    passes = [Pass(FORWARD, 0, number) for number in range(min(warm_up, microbatches))]
    for number in range(microbatches):
        passes.append(Pass(INPUT, 0, number))
        if number >= delay:
            passes.append(Pass(WEIGHT, 0, number - delay))
        if number + warm_up < microbatches:
            passes.append(Pass(FORWARD, 0, number + warm_up))
    remaining = range(max(microbatches - delay, 0), microbatches)
    return [*passes, *(Pass(WEIGHT, 0, number) for number in remaining)]


def zb_v(stages: int, microbatches: int) -> Schedule:
    """ZB-V: two chunks per stage, the second in reverse order, so that the first stage has both ends.

    Memory as in 1F1B; with F = I = W no stage idles between its first and last pass.
    """
    positions = tuple((stage, 2 * stages - 1 - stage) for stage in range(stages))
    orders = tuple(singles(_v_order(stages, stage, microbatches)) for stage in range(stages))
    return Schedule("zb-v", positions, microbatches, orders)


def _v_order(stages: int, stage: int, microbatches: int) -> list[Pass]:
    """Passes of one stage; below 2 p - 1 micro-batches as if the missing ones took no time."""
    total = max(microbatches, 2 * stages - 1)
    down = stages - stage
    numbers = {(phase, chunk): count() for phase in (FORWARD, INPUT, WEIGHT) for chunk in (0, 1)}
    passes: list[Pass] = []

    def run(text: str, times: int) -> None:
        """Append passes as in "F0 I1", each with its next micro-batch, this many times."""
        for _ in range(times):
            for phase, chunk in _read(text):
                passes.append(Pass(phase, chunk, next(numbers[phase, chunk])))

    run("F0", 2 * down - 1)
    run("F1 F0", stage)
    run("F1 I1 W1", down)
    # So far 2 p - 1 - stage forwards of chunk 0.
    remaining = total - (2 * down - 1 + stage)
    run("F0 I0 W0 F1 I1 W1", remaining)
    run("I0 W0 F1 I1 W1", total - stages - remaining)
    run("I0 I1", stage)
    run("I0 W0", down)
    for chunk in (1, 0):
        done = sum(pass_.phase == WEIGHT and pass_.chunk == chunk for pass_ in passes)
        run(f"W{chunk}", total - done)
    return [pass_ for pass_ in passes if pass_.microbatch < microbatches]


def _read(text: str) -> Iterator[tuple[str, int]]:
    names = {"F": FORWARD, "I": INPUT, "W": WEIGHT}
    for word in text.split():
        yield names[word[0]], int(word[1])
