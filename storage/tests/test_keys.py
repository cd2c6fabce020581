"""The bytes of the keys of rows, and their order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from visibility.rows import row_keys as keys

GROUP = bytes(range(16))
NUMBER = "0000000000000003"
LATER = "000000000000ffff"


def test_keys_are_these_bytes() -> None:
    queue = "0000000000000102"
    group = GROUP.hex()
    assert keys.queue_key(258).hex() == queue + "01"
    assert keys.message_key(258, 3).hex() == queue + "10" + NUMBER
    assert keys.pair_key(258, keys.CLOCK, 3, 65_535).hex() == queue + "12" + NUMBER + LATER
    assert keys.pair_key(258, keys.DELAYED, 3, 65_535).hex() == queue + "14" + NUMBER + LATER
    assert keys.group_key(258, keys.GROUP, GROUP).hex() == queue + "18" + group
    line = keys.group_line_key(258, keys.GROUP_LINE, GROUP, 3)
    assert line.hex() == queue + "19" + group + NUMBER
    assert keys.row_key(258, keys.HEAD, 3).hex() == queue + "1a" + NUMBER
    assert keys.row_key(258, keys.LEASE, 65_535).hex() == queue + "20" + LATER
    assert keys.row_key(258, keys.ALIAS, 3).hex() == queue + "22" + NUMBER
    assert keys.row_key(258, keys.HOLD, 3).hex() == queue + "24" + NUMBER
    remembered = keys.remembered_key(258, keys.REMEMBERED, 3, GROUP)
    assert remembered.hex() == queue + "30" + NUMBER + group
    assert keys.row_key(258, keys.MOVE_TASK, 3).hex() == queue + "40" + NUMBER
    assert keys.row_key(258, keys.SPAN, 3).hex() == queue + "50" + NUMBER
    assert keys.pair_key(0, keys.ANSWERS, 3, 65_535).hex() == "00" * 8 + "64" + NUMBER + LATER


numbers = st.integers(1, 2**63 - 1)
groups = st.binary(min_size=16, max_size=16)
ROW_TABLES = (
    keys.MESSAGE,
    keys.HEAD,
    keys.LEASE,
    keys.ALIAS,
    keys.HOLD,
    keys.MOVE_TASK,
    keys.SPAN,
)


def all_keys(queue_id: int, number: int, other: int, group: bytes) -> dict[bytes, bytes]:
    """A key of each table, in the order of the tables."""
    made = {keys.QUEUE: keys.queue_key(queue_id)}
    made |= {table: keys.row_key(queue_id, table, number) for table in ROW_TABLES}
    made |= {
        table: keys.pair_key(queue_id, table, other, number) for table in (keys.CLOCK, keys.DELAYED)
    }
    made[keys.GROUP] = keys.group_key(queue_id, keys.GROUP, group)
    made[keys.GROUP_LINE] = keys.group_line_key(queue_id, keys.GROUP_LINE, group, number)
    made[keys.REMEMBERED] = keys.remembered_key(queue_id, keys.REMEMBERED, other, group)
    return dict(sorted(made.items()))


@given(numbers, numbers, numbers, groups)
def test_keys_tell_what_they_are_made_of(
    queue_id: int, number: int, other: int, group: bytes
) -> None:
    made = all_keys(queue_id, number, other, group)

    for table, key in made.items():
        assert keys.queue_of(key) == queue_id
        named = (queue_id, number) if table in (keys.MESSAGE, keys.DELAYED) else None
        assert keys.message_name(key) == named
    for table in ROW_TABLES:
        assert keys.number_of(made[table]) == keys.last_number_of(made[table]) == number
    assert keys.pair_of(made[keys.CLOCK]) == keys.pair_of(made[keys.DELAYED]) == (other, number)
    assert keys.last_number_of(made[keys.GROUP_LINE]) == number


two = st.tuples(numbers, numbers, numbers, groups)


@given(two, two)
def test_keys_sort_by_queue_then_table_then_what_follows(
    one: tuple[int, int, int, bytes], other: tuple[int, int, int, bytes]
) -> None:
    mine, theirs = list(all_keys(*one).values()), list(all_keys(*other).values())

    assert mine == sorted(mine), "the queue's own row first"
    if one[0] != other[0]:
        assert (max(mine) < min(theirs)) is (one[0] < other[0])
    moved = all_keys(one[0], *other[1:])
    for table, key in all_keys(*one).items():
        assert (key < moved[table]) is (_order(table, one) < _order(table, other))


def _order(table: bytes, made_of: tuple[int, int, int, bytes]) -> tuple[object, ...]:
    _, number, other, group = made_of
    orders: dict[bytes, tuple[object, ...]] = {
        keys.QUEUE: (),
        keys.CLOCK: (other, number),
        keys.DELAYED: (other, number),
        keys.GROUP: (group,),
        keys.GROUP_LINE: (group, number),
        keys.REMEMBERED: (other, group),
    }
    return orders.get(table, (number,))


@given(numbers, numbers, numbers, groups)
def test_ranges_hold_exactly_their_rows(
    queue_id: int, number: int, other: int, group: bytes
) -> None:
    begin, end = keys.queue_range(queue_id)
    made = all_keys(queue_id, number, other, group)

    assert all(begin <= key < end for key in made.values())
    assert keys.queue_key(queue_id + 1) >= end
    assert max(all_keys(queue_id - 1, number, other, group).values()) < begin
    for table in made:
        first, behind = keys.table_range(queue_id, table)
        assert [found for found, key in made.items() if first <= key < behind] == [table]
