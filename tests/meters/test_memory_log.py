"""The memory log: live bytes, peaks, and the rewritten log. Storages are plain numbers here, without tensors."""

from __future__ import annotations

from itertools import accumulate

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fxflops.meters.history import NO_CALL, triples
from fxflops.meters.memory_log import MemoryLog
from fxflops.records import Spec


def floats(count: int) -> tuple[Spec, int]:
    """Return the spec of ``count`` floats, and their bytes."""
    return Spec((count,), torch.float32), 4 * count


def sizes(log: MemoryLog) -> dict[int, int]:
    """Return each storage's bytes at the highest peak, by the only size of its spec."""
    return {tensor.spec[0]: tensor.bytes for tensor in log.history([]).at_peak}


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 100))))
def test_the_peaks_are_the_maxima_of_the_live_bytes(steps: list[tuple[int, int]]) -> None:
    log, nbytes_of = MemoryLog(), dict[int, int]()
    totals, reset_at = [0], 0
    for action, amount in steps:
        if action == 0:
            log.reset_peak()
            reset_at = len(totals) - 1
            continue
        if action == 1 and nbytes_of:  # free a storage, resize one, or else make one
            number, nbytes = nbytes_of.popitem()
            log.change(number, -nbytes)
        elif action == 2 and nbytes_of:
            number = min(nbytes_of)
            log.change(number, amount - nbytes_of[number])
            nbytes_of[number] = amount
        else:
            nbytes_of[log.add(*floats(amount))] = 4 * amount
        totals.append(sum(nbytes_of.values()))
    history = log.history([])
    assert (log.live, log.peak, log.most) == (totals[-1], max(totals[reset_at:]), max(totals))
    assert sum(tensor.bytes for tensor in history.at_end) == totals[-1]
    assert sum(tensor.bytes for tensor in history.at_peak) == history.peak == max(totals)
    assert [*accumulate((nbytes for _, nbytes, _ in triples(history.changes)), initial=0)] == totals


def test_a_call_that_needs_more_than_it_leaves() -> None:
    log = MemoryLog()
    log.add(*floats(100))
    outer = log.begin()
    result = log.add(*floats(1))
    inner = log.begin()
    log.change(log.add(*floats(10)), -40)
    log.add(*floats(2))
    assert log.end(inner) == (8, {result + 1: 40})
    assert log.end(outer) == (12, {result: 4, result + 1: 40})
    assert log.peak == log.most == 444


def test_a_call_below_the_peak_leaves_the_peak_as_it_was() -> None:
    log = MemoryLog()
    log.change(log.add(*floats(100)), -400)
    mark = log.begin()
    log.add(*floats(3))
    assert log.peak == 12
    assert log.end(mark) == (12, {})
    assert log.peak == 400


def test_a_storage_met_in_a_call_was_alive_before_it() -> None:
    log = MemoryLog()
    log.current_call = 0
    mark = log.begin()
    log.set_met(argument := log.add(*floats(10)), 40)
    log.change(argument, -40)
    log.add(*floats(5))
    assert log.end(mark) == (20 - 40, {})


def test_met_storages_are_moved_but_not_their_ends() -> None:
    log = MemoryLog()
    log.current_call = 0
    log.change(log.add(*floats(1)), -4)
    log.current_call = 1
    met = log.add(*floats(10))
    log.set_not_made(met, "inputs")
    log.set_met(met, 40)
    log.current_call = 2
    log.change(met, -40)
    assert log.most == 40
    log.current_call = 3
    log.move_met_to_beginning()
    assert [*triples(log.changes)] == [(met, 40, NO_CALL), (0, 4, 0), (0, -4, 0), (met, -40, 2)]
    assert (log.live, log.most, log.history([]).call_at_peak) == (0, 44, 0)
    assert log.current_call == 3
    assert sizes(log) == {10: 40, 1: 4}


def test_storages_from_the_beginning_have_no_maker() -> None:
    log = MemoryLog()
    log.current_call = 0
    log.change(log.add(*floats(100)), -400)
    log.current_call = 1
    bucket = log.add(*floats(10))
    log.change(bucket, 40)
    log.move_to_beginning({bucket})
    assert [*triples(log.changes)] == [(bucket, 40, NO_CALL), (bucket, 40, NO_CALL), (0, 400, 0), (0, -400, 0)]
    assert log.storages.makers == [0, NO_CALL]
    assert log.most == 480


def test_storages_left_out_make_no_peak() -> None:
    log = MemoryLog()
    log.current_call = 0
    left_out = log.add(*floats(1000))
    log.add(*floats(10))
    log.change(left_out, -4000)
    log.add(*floats(1))
    log.leave_out({left_out})
    assert (log.live, log.peak, log.most) == (44, 44, 44)
    assert sizes(log) == {10: 40, 1: 4}


def test_transients_are_alive_together_and_leave_nothing() -> None:
    log = MemoryLog()
    log.add(*floats(1))
    log.add_transients([floats(10), floats(20)])
    assert (log.live, log.most) == (4, 124)
    assert sizes(log) == {20: 80, 10: 40, 1: 4}


def test_a_label_comes_before_a_default_category() -> None:
    log = MemoryLog()
    log.add_at_beginning("params", [("weight", *floats(3))])
    assert (log.live, log.most, log.history([]).call_at_peak) == (12, 12, NO_CALL)
    for _ in range(2):
        log.set_not_made(log.add(*floats(2)), "inputs")
    log.storages.categories[1] = "cache"
    tensors = log.history([]).at_end
    assert [(tensor.category, tensor.name) for tensor in tensors] == [
        ("params", "weight"),
        ("cache", ""),
        ("inputs", ""),
    ]


def test_a_history_does_not_change_when_storages_are_freed_later() -> None:
    log = MemoryLog()
    weight = log.add(*floats(3))
    history = log.history([])
    log.change(weight, -12)
    assert [tensor.bytes for tensor in history.at_end] == [12]
