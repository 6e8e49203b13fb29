"""GPU work as arrays: order, kinds, classes."""

from __future__ import annotations

from tests.builders import draw, events, read
from tracelens.trace import WORK_KINDS, Trace, gpu_work


def described(trace: Trace) -> dict[str, tuple[str, str]]:
    """Name to (kind, class) of the GPU work."""
    work = gpu_work(trace)
    return {
        work.names[name]: (WORK_KINDS[kind], work.categories[category])
        for name, kind, category in zip(work.name, work.kind, work.category, strict=True)
    }


def test_kinds_come_from_the_event_then_from_the_name() -> None:
    trace = draw("""
        s7 ampere_sgemm_128x64_nn                      | ==
        s7 ncclDevKernel_AllReduce_Sum_f32_RING_LL     |   ==
        s7 copy                                        |     ==
        s7 fill                                        |       ==
        s7 __amd_rocclr_copyBuffer                     |         ==
        s7 copy gemm_named_copy                        |           ==
    """)
    found = described(trace)
    assert {name: kind for name, (kind, _) in found.items()} == {
        "ampere_sgemm_128x64_nn": "computation",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL": "comm",
        "Memcpy HtoD (Pinned -> Device)": "memcpy",
        "Memset (Device)": "memset",
        "__amd_rocclr_copyBuffer": "memcpy",
        "gemm_named_copy": "memcpy",
    }
    assert found["ampere_sgemm_128x64_nn"][1] == "gemm"
    assert found["Memset (Device)"][1] == "fill"


def test_the_op_tells_the_class_of_a_kernel_that_does_not() -> None:
    trace = draw("""
        op aten::mm      | ---
        op aten::strange |     ---
        launch           |  a   b
        s7 qzx_1         |        aa
        s7 qzx_2         |          bb
        s7 qzx_3         |            ==
    """)
    assert {name: found[1] for name, found in described(trace).items()} == {
        "qzx_1": "gemm",
        "qzx_2": "other",
        "qzx_3": "other",
    }


def test_work_is_in_order_of_start_and_keeps_its_columns_together() -> None:
    trace = draw("""
        launch           | abc
        s7 late          |          aa
        s8 early         |    bbb
        s7 copy device=1 |      c
    """)
    work = gpu_work(trace)
    assert [work.names[name] for name in work.name] == ["early", "Memcpy HtoD (Pinned -> Device)", "late"]
    assert (work.start // 1000).tolist() == [3, 5, 9]
    assert (work.dur // 1000).tolist() == [3, 1, 2]
    assert work.stream.tolist() == [8, 7, 7]
    assert work.device.tolist() == [0, 1, 0]
    assert work.is_kernel.tolist() == [True, False, True]


def test_rows_on_the_gpu_that_are_no_work() -> None:
    drawn = events("""
        gpu region | -----
        s7 k       |  ==
    """)
    drawn.append({**drawn[1], "cat": "cuda_sync", "name": "Stream Synchronize"})
    assert list(described(read(drawn))) == ["k"]


def test_scope_linked_leaves_out_the_rest() -> None:
    trace = draw("""
        launch | a
        s7 k   |   aa ==
        s7 u   |         ==
    """)
    assert len(gpu_work(trace).event) == 3
    assert len(gpu_work(trace, "linked").event) == 1


def test_no_gpu_work() -> None:
    work = gpu_work(draw("python f | ---"))
    assert len(work.event) == 0
    assert work.union().total == 0


def test_unions_by_kind() -> None:
    work = gpu_work(
        draw("""
        s7 gemm           | ====    ==
        s8 ncclAllReduce  |   ====
        s9 copy           |         =====
    """)
    )
    # computation 0-4 and 8-10; communication 2-6; copies 8-13, of which 8-10 under the gemm
    assert work.union("computation").total == 6000
    assert work.union("computation", "comm").total == 8000
    assert work.union().total == 11000
