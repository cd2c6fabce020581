"""Requests with oddities: those that two readers of HTTP may read differently."""

from __future__ import annotations

import random

from sqs_api.tests.serving import json_request, query_request, request_bytes

PLAIN = json_request("SendMessage", QueueUrl="http://h/000000000000/q", MessageBody="héllo")
FORM = query_request("ReceiveMessage", line="POST /000000000000/q HTTP/1.1", WaitTimeSeconds="1")
EMPTY = request_bytes(b"", line="POST /?Action=ListQueues&Version=2012-11-05 HTTP/1.1")
SEEDS = (PLAIN, FORM, EMPTY)

LINES = (
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
HEADERS = (
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
BEHIND = (
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


def odd_request(chance: random.Random) -> bytes:
    """A request with some oddities: none, one, or several."""
    head, _, body = chance.choice(SEEDS).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    ends = [b"\r\n"] * (len(lines) + 1)
    for _ in range(chance.choice((0, 0, 1, 1, 1, 2, 3))):
        match chance.randrange(9):
            case 0:
                lines[0] = chance.choice(LINES)
            case 1 | 2:
                lines.insert(chance.randint(1, len(lines)), chance.choice(HEADERS))
                ends.append(b"\r\n")
            case 3:
                header = chance.choice(HEADERS)
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


def odd_bytes(chance: random.Random) -> bytes:
    """Such a request, at times with something before, within or behind it."""
    data = odd_request(chance)
    match chance.randrange(10):
        case 0 | 1:
            data += chance.choice(BEHIND)
        case 2:
            data += odd_request(chance)
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
