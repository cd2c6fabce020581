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
from sqs_api.tests import wires
from sqs_api.tests.serving import AiohttpServer, json_request, query_request, request_bytes

_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "4000"))
_SEED = int(os.environ.get("FUZZ_SEED", "9324"))

PLAIN = json_request("SendMessage", QueueUrl="http://h/000000000000/q", MessageBody="héllo")
FORM = query_request("ReceiveMessage", line="POST /000000000000/q HTTP/1.1", WaitTimeSeconds="1")
EMPTY = request_bytes(b"", line="POST /?Action=ListQueues&Version=2012-11-05 HTTP/1.1")
SEEDS = (PLAIN, FORM, EMPTY)

_LINES = (
    b"POST / HTTP/1.1",
    b"POST /000000000000/q HTTP/1.1",
    b"POST /?a=b?c=d&%41=%zz HTTP/1.1",
    b"POST /a#b HTTP/1.1",
    b"POST /healthzz HTTP/1.1",
    b"POST /%68ealthz HTTP/1.1",
    b"POST //x/../y HTTP/1.1",
    b'POST /"<>\\^`{|}~ HTTP/1.1',
    b"POST http://other/q HTTP/1.1",
    b"POST * HTTP/1.1",
    b"POST host:80 HTTP/1.1",
    b"POST  / HTTP/1.1",
    b"POST /a b HTTP/1.1",
    b"POST / HTTP/1.1 ",
    b" POST / HTTP/1.1",
    b"POST /\t HTTP/1.1",
    b"POST /\xc3\xa9 HTTP/1.1",
    b"POST / HTTP/1.0",
    b"POST / HTTP/1.2",
    b"POST / HTTP/2.0",
    b"POST / HTTP/11",
    b"POST / http/1.1",
    b"POST /",
    b"post / HTTP/1.1",
    b"GET / HTTP/1.1",
    b"HEAD / HTTP/1.1",
    b"PUT / HTTP/1.1",
    b"CONNECT h:80 HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"PRI * HTTP/2.0",
    b"",
)
_HEADERS = (
    b"Content-Length: 5",
    b"Content-Length: +5",
    b"Content-Length: -5",
    b"Content-Length: 05",
    b"Content-Length: 5,5",
    b"Content-Length: 5, 5",
    b"Content-Length: 5 5",
    b"Content-Length: 0x5",
    b"Content-Length: 5;a",
    b"Content-Length: \xb2",
    b"Content-Length: 5\t",
    b"Content-Length:5",
    b"Content-Length :5",
    b"Content-Length: ",
    b"Content-Length: 999999",
    b"Content-Length: 9999999999",
    b"Content-Length: 99999999999999999999999",
    b"content-length: 0",
    b"CONTENT-LENGTH: 1",
    b"Content_Length: 5",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding:\tchunked",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding\x00: chunked",
    b" Transfer-Encoding: chunked",
    b"X: y\r\n Transfer-Encoding: chunked",
    b"X: y\rTransfer-Encoding: chunked",
    b"X: y\nTransfer-Encoding: chunked",
    b"X: y\n\nPOST /smuggled HTTP/1.1\nHost: h\nContent-Length: 0",
    b"TE: trailers",
    b"Trailer: X",
    b"Expect: 100-continue",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Connection: Upgrade\r\nUpgrade: websocket",
    b"Upgrade: h2c",
    b"Proxy-Connection: close",
    b"Keep-Alive: timeout=5",
    b"Content-Encoding: identity",
    b"Host: again",
    b"host: other",
    b"Host:",
    b"Content-Type: text/plain",
    b"Sec-WebSocket-Key1: x",
    b"Sec-WebSocket-Version: 13",
    b"Cookie: a=b; c",
    b"Range: bytes=0-",
    b"If-None-Match: *",
    b"X-Empty:",
    b"X-Empty: ",
    b"X-Spaces:   a  b   ",
    b"X-Tab: \ta\t",
    b"X-High: \xe9\xff",
    b"X-Nul: a\x00b",
    b"X-Del: a\x7fb",
    b"X-Colon: a: b: c",
    b"X: 1\r\nX: 2",
    b"X" * 65 + b": long name",
    b"X-Long: " + b"y" * 7000,
    b"X-Longer: " + b"y" * 9000,
    b"(X): y",
    b": no name",
    b"no colon",
    b"\xe9: y",
    b"X-Amz-Target: AmazonSQS.ListQueues",
)
_BREAKS = (b"\n", b"\r", b"\r\r\n", b"\r\n\r\n", b" \r\n", b"\n\r\n", b"\x0b", b"")
_BODIES = (b"", b"a", b"abcde", b"5\r\nabcde\r\n0\r\n\r\n", b"0\r\n\r\n", b"{}", b"\r\n", b"zz\r\n")
_BEHIND = (
    b"\r\n",
    b"x",
    b"\0",
    b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
    b"POST /smuggled HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
    PLAIN,
    PLAIN[:30],
    FORM,
)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """aiohttp logs every malformed request."""
    caplog.set_level(logging.CRITICAL, "aiohttp.server")


def _request(chance: random.Random) -> bytes:
    """A request with some oddities: none, one, or several."""
    head, _, body = chance.choice(SEEDS).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    ends = [b"\r\n"] * (len(lines) + 1)
    for _ in range(chance.choice((0, 0, 1, 1, 1, 2, 3))):
        match chance.randrange(9):
            case 0:
                lines[0] = chance.choice(_LINES)
            case 1 | 2:
                lines.insert(chance.randint(1, len(lines)), chance.choice(_HEADERS))
                ends.append(b"\r\n")
            case 3:
                header = chance.choice(_HEADERS)
                name = header.partition(b":")[0].strip().lower()
                lines = [line for line in lines if line.partition(b":")[0].lower() != name]
                lines.append(header)
            case 4:
                body = chance.choice(_BODIES)
                if chance.random() < 0.8:
                    lines = [x for x in lines if not x.startswith(b"Content-Length")]
                    lines.append(b"Content-Length: %d" % len(body))
            case 5:
                ends[chance.randrange(len(ends))] = chance.choice(_BREAKS)
            case 6:
                del lines[chance.randrange(len(lines))]
            case 7:
                tail = lines[1:]
                chance.shuffle(tail)
                lines[1:] = tail
            case 8:
                number = chance.randrange(len(lines))
                change = chance.choice((bytes.upper, bytes.lower, bytes.title))
                lines[number] = change(lines[number])
        lines = lines or [b""]
    return b"".join(line + ends[i % len(ends)] for i, line in enumerate(lines)) + b"\r\n" + body


def _bytes(chance: random.Random) -> bytes:
    data = _request(chance)
    match chance.randrange(10):
        case 0 | 1:
            data += chance.choice(_BEHIND)
        case 2:
            data += _request(chance)
        case 3:
            place = chance.randrange(len(data) + 1)
            data = data[:place] + bytes([chance.randrange(256)]) + data[place + 1 :]
        case 4:
            place = chance.randrange(len(data) + 1)
            data = (
                data[:place]
                + chance.choice((b"\r", b"\n", b"\0", b" ", b"\t", b":"))
                + data[place:]
            )
        case 5:
            data = data[: chance.randrange(len(data) + 1)]
        case 6:
            data = chance.choice((b"\r\n", b"\n", b"\r\n\r\n", b"\0", b" ")) + data
        case _:
            pass
    return data


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
        short_cuts += (await _assert_law(_reads(chance, _bytes(chance)))).short_cuts

    assert short_cuts > _EXAMPLES / 10, (
        "the comparison says little if the short cut is rarely taken"
    )


@pytest.mark.parametrize("line", _LINES)
async def test_every_request_line_gets_one_reading(line: bytes) -> None:
    await _assert_law([line + PLAIN[PLAIN.index(b"\r\n") :] + FORM])


@pytest.mark.parametrize("header", _HEADERS)
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


@pytest.mark.parametrize("behind", _BEHIND)
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
