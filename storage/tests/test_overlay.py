"""Changes and Overlay: reads see layers of changes over rows as if they had been applied to a plain
dict."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from storage.tests.memory_store import MemoryStore, change_rows
from visibility.rows.overlay import Overlay
from visibility.rows.row_changes import Changes

TABLES = [b"\0" * 7 + queue + table for queue in (b"\1", b"\2") for table in (b"\x10", b"\x12")]
ENDS = [table[:-1] + bytes([table[-1] + 1]) for table in TABLES]
"""Behind each table."""

short = st.binary(max_size=2)
keys = st.one_of(
    st.builds(bytes.__add__, st.sampled_from(TABLES), st.sampled_from([b"", b"a", b"b", b"c"])),
    st.builds(bytes.__add__, st.sampled_from(TABLES), short),
)
bounds = st.one_of(keys, st.sampled_from(ENDS + [table[:8] for table in TABLES]), short)
values = st.binary(max_size=1)
put = st.tuples(st.just("put"), keys, values)
delete = st.tuples(st.just("delete"), keys, st.just(b""))
delete_range = st.tuples(st.just("delete_range"), bounds, bounds)
get = st.tuples(st.just("get"), st.lists(keys, min_size=1, max_size=6), st.just(b""))
scan = st.tuples(st.just("scan"), bounds, bounds)
table_scan = st.integers(0, len(TABLES) - 1).map(lambda at: ("scan", TABLES[at], ENDS[at]))
new_layer = st.just(("layer", b"", b""))
forget = st.just(("forget", b"", b""))
puts = st.lists(put, min_size=9, max_size=20).map(lambda many: ("many", many, b""))
"""Enough at once that they are sorted instead of inserted one by one."""
steps = st.lists(
    st.one_of(
        put,
        put,
        delete,
        delete_range,
        puts,
        get,
        scan,
        scan,
        table_scan,
        new_layer,
        new_layer,
        forget,
    ),
    max_size=40,
)


class Rows:
    """An overlay over a store, and the dict that it must look like."""

    def __init__(self, base: dict[bytes, bytes]) -> None:
        self.store = MemoryStore()
        self.store.rows = dict(base)
        self.expected = dict(base)
        self.overlay = Overlay(self.store, Changes())

    def change(self, kind: str, key: bytes, value: bytes) -> None:
        layer = self.overlay.layers[-1]
        recorded = Changes()
        for changes in (layer, recorded):
            if kind == "put":
                changes.put(key, value)
            elif kind == "delete":
                changes.delete(key)
            else:
                changes.delete_range(key, value)
        change_rows(self.expected, recorded.ops)

    def forget(self) -> None:
        """The oldest layer was applied to the rows."""
        if len(self.overlay.layers) > 1:
            self.store.apply(self.overlay.layers.pop(0))

    def check_get(self, asked: list[bytes]) -> None:
        found = [self.expected.get(key) for key in asked]
        assert [self.overlay.get(key) for key in asked] == found
        assert self.overlay.get_many(asked) == found

    def check_scan(self, begin: bytes, end: bytes) -> None:
        found = [(key, self.expected[key]) for key in sorted(self.expected) if begin <= key < end]
        assert list(self.overlay.scan(begin, end)) == found


@given(st.dictionaries(keys, values, max_size=20), steps)
def test_reads_through_layers_are_those_of_a_dict(
    base: dict[bytes, bytes], ways: list[tuple[str, object, bytes]]
) -> None:
    rows = Rows(base)
    for kind, what, value in ways:
        if kind == "layer":
            rows.overlay.layers.append(Changes())
        elif kind == "forget":
            rows.forget()
        elif kind == "get":
            assert isinstance(what, list)
            rows.check_get(what)
        elif kind == "scan":
            assert isinstance(what, bytes)
            rows.check_scan(what, value)
        elif kind == "many":
            assert isinstance(what, list)
            for each in what:
                rows.change(*each)
        else:
            assert isinstance(what, bytes)
            rows.change(kind, what, value)
    rows.check_scan(b"", b"\xff" * 12)
    rows.check_get(sorted(rows.expected | base))
    while len(rows.overlay.layers) > 1:
        rows.forget()
    rows.check_scan(b"", b"\xff" * 12)


def test_changes_count_their_rows_and_the_bytes_of_their_values() -> None:
    changes = Changes()
    assert not changes

    changes.put(b"a", b"12345")
    changes.put(b"a", b"1")
    changes.delete(b"a")
    changes.delete_range(b"a", b"b")

    assert (bool(changes), len(changes), changes.size) == (True, 4, 6)
    assert changes.ops == [b"a", b"12345", b"a", b"1", b"a", None, b"a", [b"b"]]


def test_changes_that_were_read_from_a_log_can_be_read() -> None:
    changes = Changes([b"a", b"1", b"b", b"2", b"b", [b"c"]])

    assert [changes.find(key, "untouched") for key in (b"a", b"b", b"c")] == [
        b"1",
        None,
        "untouched",
    ]


def test_a_scan_reads_the_rows_below_no_further_than_it_is_asked_to() -> None:
    read: list[bytes] = []

    class Watched(MemoryStore):
        def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
            for key, value in super().scan(begin, end):
                read.append(key)
                yield key, value

    store = Watched()
    store.rows = {b"%d" % number: b"" for number in range(10)}
    changes = Changes()
    changes.delete_range(b"0", b"3")
    changes.put(b"5x", b"")

    first = next(Overlay(store, changes).scan(b"0", b"9"))

    assert first == (b"3", b"")
    assert read == [b"0", b"1", b"2", b"3"]
