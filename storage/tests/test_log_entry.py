"""Entries, headers and slots: bytes and back, and rubbish."""

from __future__ import annotations

from random import Random

from storage.log.entry import (
    ALIGNMENT,
    Entry,
    Misfit,
    encode_entry,
    next_magic,
    read_entry,
    record_bytes,
)
from storage.log.header import HEADER_BYTES, Header, encode_header, is_blank, read_header
from storage.log.slots import SLOT_BYTES, encode_slot, read_slots, write_steps

SEED = 0x1234


def _record(body: bytes, queue_ids: tuple[int, ...] = (5, 1 << 60)) -> tuple[bytes, int]:
    return encode_entry(body, queue_ids, SEED, term=3, index=9, previous=0xFFFFFFFF, synced=8)


def test_an_entry_is_read_as_it_was_written() -> None:
    for size in (0, 1, 7, 8, 9, 330, 100_000):
        for queue_ids in ((), (5,), tuple(range(5000))):
            body = Random(size).randbytes(size)
            record, checksum = _record(body, queue_ids)
            assert len(record) == record_bytes(size, len(queue_ids))
            assert len(record) % ALIGNMENT == 0
            for data, offset in ((record, 0), (bytes(16) + record + b"rubbish", 16)):
                entry = read_entry(data, offset, SEED)
                assert entry == Entry(
                    3, 9, checksum, 0xFFFFFFFF, 8, queue_ids, body, len(record), 1
                )


def test_a_record_that_is_cut_anywhere_is_none() -> None:
    record, _ = _record(b"body")
    for size in range(len(record)):
        assert isinstance(read_entry(record[:size], 0, SEED), Misfit)


def test_a_record_with_any_flipped_bit_is_none() -> None:
    body = b"some body"
    record, _ = _record(body)
    pad = -len(body) % ALIGNMENT
    for bit in range((len(record) - pad) * 8):
        damaged = bytearray(record)
        damaged[bit // 8] ^= 1 << bit % 8
        assert isinstance(read_entry(bytes(damaged), 0, SEED), Misfit)


def test_a_record_of_another_log_is_none() -> None:
    record, _ = _record(b"body")

    assert isinstance(read_entry(record, 0, SEED + 1), Misfit)


def test_an_intact_head_tells_of_a_damaged_body() -> None:
    record, _ = _record(b"body")
    damaged = record.replace(b"body", b"bodx")

    found = read_entry(damaged, 0, SEED)

    assert isinstance(found, Misfit)
    assert found.head is not None
    assert (found.head.index, found.head.queue_ids) == (9, (5, 1 << 60))
    assert found.head.size == len(record)


def test_records_are_searched_for_at_aligned_offsets_only() -> None:
    record, _ = _record(b"body")
    data = b"abc" + record + bytes(-(len(record) + 3) % ALIGNMENT) + record

    assert next_magic(data, 0) == len(data) - len(record)
    assert next_magic(data, len(data) - len(record) + 1) == -1


HEADER = Header(b"i" * 16, 3, 100, 0xABCD, 90, HEADER_BYTES, 16 << 20)


def test_a_header_survives_any_flipped_bit() -> None:
    written = encode_header(HEADER)
    assert not is_blank(written)
    for bit in range(len(written) * 8):
        damaged = bytearray(written)
        damaged[bit // 8] ^= 1 << bit % 8
        assert read_header(bytes(damaged)) == HEADER


def test_a_header_that_was_never_written_is_none() -> None:
    assert read_header(bytes(HEADER_BYTES)) is None
    assert is_blank(bytes(HEADER_BYTES))
    assert read_header(b"") is None


def test_the_newer_of_two_copies_counts() -> None:
    newer = HEADER._replace(first=200)
    half = encode_header(newer)[:2048] + encode_header(HEADER)[2048:]

    assert read_header(half) == newer


def test_slots_are_written_in_turn_and_the_newest_counts() -> None:
    data = bytearray(2 * SLOT_BYTES)
    for number in range(1, 6):
        slots = read_slots(bytes(data))
        assert slots.number == number - 1
        slot = encode_slot(slots.number + 1, b"payload %d" % number)
        data[slots.next_at : slots.next_at + SLOT_BYTES] = slot
        assert read_slots(bytes(data)).payload == b"payload %d" % number


def test_a_damaged_slot_leaves_the_other_one() -> None:
    data = bytearray(encode_slot(2, b"older") + encode_slot(3, b"newer"))
    data[SLOT_BYTES + 20] ^= 1

    slots = read_slots(bytes(data))

    assert (slots.payload, slots.damaged) == (b"older", 1)
    assert slots.next_at == SLOT_BYTES
    assert read_slots(b"").payload is None


def test_a_slot_of_several_sectors_is_empty_until_its_first_one_is_written() -> None:
    payload = bytes(range(1, 250)) * 5
    slot = encode_slot(1, payload)
    assert len(slot) == 3 * SLOT_BYTES
    data = bytearray(8192)
    for part, at in write_steps(slot):
        assert read_slots(bytes(data), 4096) == (None, 0, 0, 4096)
        data[4096 + at : 4096 + at + len(part)] = part

    assert read_slots(bytes(data), 4096) == (payload, 1, 0, 4096)
    data[4096 + 2 * SLOT_BYTES] ^= 1
    assert read_slots(bytes(data), 4096) == (None, 0, 1, 4096)
