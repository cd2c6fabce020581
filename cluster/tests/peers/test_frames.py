"""Frames come out of any pieces as they went in, and nothing else makes the reader grow."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.peers.frames import HEAD, BadFrame, Frame, FrameReader

EXAMPLES = settings(max_examples=int(os.environ.get("MODEL_EXAMPLES", "100")), deadline=None)
BODY_MAX = 40
frame = st.tuples(st.integers(0, 255), st.integers(0, 2**64 - 1), st.binary(max_size=BODY_MAX))


def encoded(frames: list[Frame]) -> bytes:
    return b"".join(HEAD.pack(len(body), kind, number) + body for kind, number, body in frames)


def in_pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@EXAMPLES
@given(st.lists(frame, max_size=6), st.lists(st.integers(0, 60), max_size=20))
def test_frames_in_any_pieces(frames: list[Frame], sizes: list[int]) -> None:
    reader = FrameReader(BODY_MAX)

    found = [each for piece in in_pieces(encoded(frames), sizes) for each in reader.feed(piece)]

    assert found == frames


@EXAMPLES
@given(st.lists(frame, min_size=1, max_size=3))
def test_frames_byte_by_byte(frames: list[Frame]) -> None:
    reader = FrameReader(BODY_MAX)

    found = [each for byte in encoded(frames) for each in reader.feed(bytes([byte]))]

    assert found == frames


@EXAMPLES
@given(st.lists(frame, max_size=6), st.lists(st.integers(0, 60), max_size=20))
def test_frames_stay_when_the_buffer_is_used_again(frames: list[Frame], sizes: list[int]) -> None:
    reader, found = FrameReader(BODY_MAX), []

    for piece in in_pieces(encoded(frames), sizes):
        buffer = bytearray(piece)
        found += reader.feed(memoryview(buffer))
        buffer[:] = bytes(len(buffer))

    assert found == frames


@EXAMPLES
@given(st.binary(max_size=300), st.lists(st.integers(0, 60), max_size=20))
def test_rubbish_is_frames_or_refused_in_bounded_memory(data: bytes, sizes: list[int]) -> None:
    reader = FrameReader(BODY_MAX)
    found: list[Frame] = []

    try:
        for piece in in_pieces(data, sizes):
            found += reader.feed(piece)
            assert len(reader._rest) <= HEAD.size + BODY_MAX
    except BadFrame:
        pass

    assert data.startswith(encoded(found))


def test_a_large_frame_is_refused_before_its_body() -> None:
    reader = FrameReader(BODY_MAX)
    assert reader.feed(HEAD.pack(BODY_MAX, 1, 1)) == []

    with pytest.raises(BadFrame):
        FrameReader(BODY_MAX).feed(HEAD.pack(BODY_MAX + 1, 1, 1))


def test_rubbish_behind_a_frame_does_not_hide_it_until_it_is_too_large() -> None:
    reader = FrameReader(BODY_MAX)
    good = encoded([(6, 1, b"good")])

    assert reader.feed(good + b"\xff") == [(6, 1, b"good")]
    with pytest.raises(BadFrame):
        reader.feed(b"\xff" * HEAD.size)
