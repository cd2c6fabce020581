"""One law: for any bytes, split into any reads, the short cut and aiohttp read the same
requests, answer the same bytes, and close at the same point.

A longer run: FUZZ_EXAMPLES=200000 python -m pytest sqs_api/tests/test_gateway_differential.py
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from sqs_api.http.server import SqsServer
from sqs_api.tests import protocol_wires as wires
from sqs_api.tests.odd_requests import BEHIND, EMPTY, FORM, HEADERS, LINES, PLAIN, SEEDS, odd_bytes
from sqs_api.tests.serving import AiohttpServer

_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "4000"))
_SEED = int(os.environ.get("FUZZ_SEED", "9324"))


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """aiohttp logs every malformed request."""
    caplog.set_level(logging.CRITICAL, "aiohttp.server")


def _reads(chance: random.Random, data: bytes) -> list[bytes]:
    """The bytes as they may arrive: mostly in one read."""
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 0, 0, 1, 2))))
    edges = [0, *cuts, len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]


async def _assert_law(reads: Sequence[bytes]) -> wires.Outcome:
    quick, slow = await wires.both(reads)
    if not quick.same_as(slow) and not await wires.merged_by_the_short_cut(reads, quick):
        assert (reads, quick.written) == (reads, slow.written)
        assert (reads, quick[:3]) == (reads, slow[:3])
    return quick


async def test_mutated_requests_get_one_reading() -> None:
    chance = random.Random(_SEED)
    short_cuts = 0

    for _ in range(_EXAMPLES):
        short_cuts += (await _assert_law(_reads(chance, odd_bytes(chance)))).short_cuts

    assert short_cuts > _EXAMPLES / 10, (
        "the comparison says little if the short cut is rarely taken"
    )


@pytest.mark.parametrize("line", LINES)
async def test_every_request_line_gets_one_reading(line: bytes) -> None:
    await _assert_law([line + PLAIN[PLAIN.index(b"\r\n") :] + FORM])


@pytest.mark.parametrize("header", HEADERS)
async def test_every_header_gets_one_reading(header: bytes) -> None:
    head, _, body = PLAIN.partition(b"\r\n\r\n")
    bare = b"\r\n".join(x for x in head.split(b"\r\n") if not x.startswith(b"Content-Length"))

    await _assert_law([head + b"\r\n" + header + b"\r\n\r\n" + body])
    await _assert_law([bare + b"\r\n" + header + b"\r\n\r\n" + b"abcde" + FORM])
    await _assert_law([head.replace(b"\r\n", b"\r\n" + header + b"\r\n", 1) + b"\r\n\r\n" + body])


@pytest.mark.parametrize("request_", SEEDS, ids=("json", "form", "empty"))
async def test_plain_request_takes_the_short_cut_in_one_read_and_with_a_split_body(
    request_: bytes,
) -> None:
    body_at = request_.index(b"\r\n\r\n") + 4
    whole = await wires.outcome_of(SqsServer, [request_])

    assert whole.short_cuts == 1
    for cut in range(body_at, len(request_)):
        assert await wires.outcome_of(SqsServer, [request_[:cut], request_[cut:]]) == whole


@pytest.mark.parametrize("request_", SEEDS, ids=("json", "form", "empty"))
async def test_answer_is_the_same_whole_cut_anywhere_and_byte_by_byte(request_: bytes) -> None:
    whole = await _assert_law([request_])

    assert len(whole.seen) == 1
    for cut in range(1, len(request_)):
        assert (await _assert_law([request_[:cut], request_[cut:]])).same_as(whole)
    assert (await _assert_law([request_[i : i + 1] for i in range(len(request_))])).same_as(whole)


async def test_pipelined_requests_are_answered_in_order_wherever_the_reads_end() -> None:
    data = PLAIN + FORM + EMPTY
    whole = await _assert_law([data])

    assert len(whole.seen) == 3
    for cut in range(1, len(data), 7):
        assert (await _assert_law([data[:cut], data[cut:]])).same_as(whole)


@pytest.mark.parametrize("behind", BEHIND)
async def test_bytes_behind_a_request_that_waits_for_its_answer_get_one_reading(
    behind: bytes,
) -> None:
    written = []
    for cut in (0, len(behind) // 2):
        line = wires.Line(SqsServer)
        line.gateway.is_answering = False
        await line.feed([PLAIN, behind[:cut] or behind])
        assert line.wire.written == []

        line.gateway.is_answering = True
        line.gateway.answer(line.gateway.waiting.pop())
        await line.feed([b"", behind[cut:]] if cut else [b""])
        written.append(await line.outcome())

    expected = await wires.outcome_of(AiohttpServer, [PLAIN, behind])
    assert all(outcome.same_as(expected) for outcome in written)


async def test_answers_keep_the_order_of_requests_while_each_waits() -> None:
    line = wires.Line(SqsServer)
    line.gateway.is_answering = False
    await line.feed([PLAIN, FORM])

    assert len(line.gateway.seen) == 1, "the next begins when the last was answered"
    for request in (EMPTY, PLAIN, b""):
        line.gateway.answer(line.gateway.waiting.pop())
        await line.quiet()
        await line.feed([request])
    line.gateway.answer(line.gateway.waiting.pop())

    ids = [part.split(b"\r\n")[0] for part in b"".join(line.wire.written).split(b"RequestId: ")[1:]]
    await line.hang_up()
    assert ids == [b"1", b"2", b"3", b"4"]
