"""Sends with their receives, where the recording of one side lacks messages, and where peers are recorded."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from tracelens.analysis.comm import Participant, Record, match_messages

GROUP = (0, 1, 2)


def message(kind: str, rank: int, peer: int, start: int, end: int, size: int = 64) -> Participant:
    record = Record(
        0, "", kind, "pp", "", GROUP, len(GROUP), "BFloat16", sent=size, received=size, sent_to=(),
        received_from=(), peer=peer,
    )  # fmt: skip
    return Participant(rank, record, start, end)


def ends(sends: list[Participant], receives: list[Participant]) -> list[tuple[int, int]]:
    """The ends of send and receive of each pair from rank 0 to rank 1."""
    matched, _, _ = match_messages("pp", GROUP, {0: sends, 1: receives})
    return [(pair.participants[0].end, pair.participants[1].end) for pair in matched]


MS = 1_000_000


def line(kind: str, numbers: list[int]) -> list[Participant]:
    """Messages of rank 0 to rank 1, one every 10 ms; a receive waits for the 2 ms before and ends with it.

    send      |0|       |1|       |2|
    recv    |-0-|     |-1-|     |-2-|
    """
    rank, ahead = (0, 1) if kind == "send" else (1, 3)
    return [message(kind, rank, 1 - rank, (10 * n - ahead) * MS, 10 * n * MS) for n in numbers]


def test_messages_that_one_side_lacks() -> None:
    for missing in ([0], [3], [7], [2, 3], [0, 7]):
        present = [n for n in range(8) if n not in missing]
        both = [(10 * n * MS, 10 * n * MS) for n in present]
        assert ends(line("send", [*range(8)]), line("recv", present)) == both
        assert ends(line("send", present), line("recv", [*range(8)])) == both


def test_each_side_lacks_another_message() -> None:
    # Equally many: pairing them by number would pair 1 with 0, 2 with 1 and so on.
    sends, receives = line("send", [1, 2, 3, 4]), line("recv", [0, 1, 2, 3])
    assert ends(sends, receives) == [(10 * n * MS, 10 * n * MS) for n in (1, 2, 3)]


def test_what_is_unpaired_is_told() -> None:
    _, skips, lacking = match_messages("pp", GROUP, {0: line("send", [0, 1, 2]), 1: line("recv", [0, 2])})
    (skip,) = skips
    assert skip.subject.startswith("1 send(s)")
    assert lacking == {1: 1}


def test_one_rank_with_two_peers() -> None:
    """Ranks 0 and 2 send to 1 and receive from it; the order among different pairs of ranks is free."""
    of_group = {
        0: [message("send", 0, 1, 0, 10), message("recv", 0, 1, 20, 40)],
        1: [
            message("recv", 1, 2, 0, 15),
            message("recv", 1, 0, 0, 10),
            message("send", 1, 2, 30, 41),
            message("send", 1, 0, 30, 40),
        ],
        2: [message("send", 2, 1, 5, 15), message("recv", 2, 1, 20, 41)],
    }
    matched, skips, _ = match_messages("pp", GROUP, of_group)
    assert not skips
    pairs = {tuple(participant.rank for participant in pair.participants) for pair in matched}
    assert pairs == {(0, 1), (2, 1), (1, 0), (1, 2)}
    assert all(len({participant.end for participant in pair.participants}) == 1 for pair in matched)


def test_no_peer() -> None:
    matched, skips, _ = match_messages("pp", GROUP, {0: [message("send", 0, -1, 0, 1)], 1: []})
    assert not matched
    (skip,) = skips
    assert skip.subject.startswith("1 send(s)")


def test_a_pair_of_ranks_needs_no_peer() -> None:
    of_group = {4: [message("send", 4, -1, 0, 10)], 9: [message("recv", 9, 9, 0, 10)]}
    matched, skips, _ = match_messages("pp", (4, 9), of_group)
    assert not skips
    assert [participant.rank for participant in matched[0].participants] == [4, 9]


times = st.lists(st.integers(0, 40), max_size=5, unique=True).map(sorted)


@given(times, times, st.lists(st.sampled_from((64, 128)), min_size=10, max_size=10))
def test_the_best_pairs(send_ends: list[int], receive_ends: list[int], sizes: list[int]) -> None:
    """As many as there can be, and of as many those with the least difference of ends, by trying them all."""
    sends = [message("send", 0, 1, end, end, size) for end, size in zip(send_ends, sizes, strict=False)]
    receives = [
        message("recv", 1, 0, end, end, size) for end, size in zip(receive_ends, sizes[5:], strict=False)
    ]
    paired = ends(sends, receives)
    best = max(
        (
            (count, -sum(abs(send.end - receive.end) for send, receive in zip(chosen, other, strict=True)))
            for count in range(min(len(sends), len(receives)) + 1)
            for chosen in combinations(sends, count)
            for other in combinations(receives, count)
            if all(a.record.sent == b.record.sent for a, b in zip(chosen, other, strict=True))
        ),
    )
    if len(sends) == len(receives) and [s.record.sent for s in sends] == [r.record.sent for r in receives]:
        assert paired == list(zip(send_ends, receive_ends, strict=True))
    else:
        assert (len(paired), -sum(abs(send - receive) for send, receive in paired)) == best
