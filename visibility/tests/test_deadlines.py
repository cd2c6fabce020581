"""DeadlineHeap: instants come out in order, and never early."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from visibility.state.shard_state import DeadlineHeap

numbers = st.integers(0, 2**64 - 1)
items = st.lists(st.tuples(st.integers(0, 2**45), numbers, numbers), max_size=30)


def drained(heap: DeadlineHeap, now_ms: int) -> list[tuple[int, int, int]]:
    due: list[tuple[int, int, int]] = []
    while (item := heap.pop_due(now_ms)) is not None:
        due.append(item)
    return due


def test_an_empty_heap_has_nothing_due_and_no_next_instant() -> None:
    heap = DeadlineHeap()

    assert heap.pop_due(2**62) is None
    assert heap.next_at_ms() is None
    assert len(heap) == 0


def test_an_instant_is_due_when_it_is_reached_and_not_before() -> None:
    heap = DeadlineHeap()
    heap.push(1_000, 7, 9)

    assert heap.pop_due(999) is None
    assert heap.next_at_ms() == 1_000
    assert heap.pop_due(1_000) == (1_000, 7, 9)
    assert heap.next_at_ms() is None


@given(items, st.integers(0, 2**45))
def test_what_is_due_comes_out_in_order_and_the_rest_stays(
    pushed: list[tuple[int, int, int]], now_ms: int
) -> None:
    heap = DeadlineHeap()
    for item in pushed:
        heap.push(*item)

    due = drained(heap, now_ms)

    assert due == sorted(item for item in pushed if item[0] <= now_ms)
    assert len(heap) == len(pushed) - len(due)
    later = sorted(item[0] for item in pushed if item[0] > now_ms)
    assert heap.next_at_ms() == (later[0] if later else None)


@given(items, items)
def test_a_rebuilt_heap_holds_the_new_items_only(
    old: list[tuple[int, int, int]], new: list[tuple[int, int, int]]
) -> None:
    heap = DeadlineHeap()
    for item in old:
        heap.push(*item)

    heap.rebuild(new)

    assert drained(heap, 2**45) == sorted(new)
