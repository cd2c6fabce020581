"""One invariant: any bytes decode to an Operation or raise a QueueError that encodes, nothing
else."""

from __future__ import annotations

import json
import os
from xml.etree import ElementTree

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqs_api.protocol import codec
from sqs_api.protocol.fields import escape_xml
from visibility.contract.actions import ACTIONS
from visibility.contract.errors import QueueError

_SETTINGS = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "4000")) // 10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    database=None,
)

_NAMES = [name.encode() for name in ACTIONS]
_SEEDS = [
    b'{"QueueUrl":"http://h/1/q","MessageBody":"x","DelaySeconds":1,"MessageAttributes":'
    b'{"a":{"DataType":"Binary","BinaryValue":"AP8="}},"Entries":[{"Id":"a","MessageBody":"b"}]}',
    b'{"AttributeNames":["All"],"Attributes":{"Policy":""},"tags":{"a":"b"},"TagKeys":["a"]}',
    b"Action=SendMessageBatch&SendMessageBatchRequestEntry.1.Id=a&SendMessageBatchRequestEntry.1."
    b"MessageAttribute.1.Name=n&SendMessageBatchRequestEntry.1.MessageAttribute.1.Value."
    b"BinaryValue=AP8%3D&SendMessageBatchRequestEntry.2.DelaySeconds=7",
    b"Action=CreateQueue&QueueName=q&Attribute.1.Name=a&Attribute.1.Value=b&Tag.member.1.Key=c"
    b"&Tag.member.1.Value=%F0%9F%98%80",
    b"Action=ReceiveMessage&AttributeName.1=All&MaxNumberOfMessages=10&QueueUrl=q",
]
_WORDS = [
    b"Action=",
    b"SendMessage",
    b"CreateQueue",
    b"&",
    b"=",
    b".",
    b".1",
    b".0",
    b".99999999999",
    b".member",
    b"Attribute",
    b"MessageAttribute",
    b"SendMessageBatchRequestEntry",
    b".Name",
    b".Value",
    b".BinaryValue",
    b"DelaySeconds",
    b"%",
    b"%ff",
    b"%00",
    b"+",
    b"-1",
    b"\\",
    b"\\x",
    b'{"',
    b'":',
    b"[",
    b"{",
    b"}",
    b"]",
    b"null",
    b"1e999",
    b'"\\ud800"',
    b"\xff",
]

_HEADERS = st.fixed_dictionaries(
    {},
    optional={
        b"x-amz-target": st.one_of(
            st.sampled_from(_NAMES).map(lambda name: b"AmazonSQS." + name), st.binary(max_size=20)
        ),
        b"content-type": st.one_of(
            st.sampled_from(
                [
                    b"application/x-amz-json-1.0",
                    b"application/x-amz-json-1.0;charset=utf-8",
                    b"application/x-www-form-urlencoded",
                    b";",
                ]
            ),
            st.binary(max_size=20),
        ),
        b"accept": st.one_of(st.sampled_from([b"application/json", b"*/*"]), st.binary(max_size=9)),
    },
)
_WORD_SALAD = st.lists(st.sampled_from(_WORDS), max_size=40).map(b"".join)


@st.composite
def _mutated(draw: st.DrawFn) -> bytes:
    body = bytearray(draw(st.sampled_from(_SEEDS)))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(body)))
        end = min(len(body), start + draw(st.integers(0, 6)))
        body[start:end] = draw(st.one_of(st.sampled_from(_WORDS), st.binary(max_size=4)))
    return bytes(body)


_BYTES = st.one_of(_mutated(), _WORD_SALAD, st.binary(max_size=200))
_METHODS = st.one_of(st.sampled_from([b"GET", b"POST"]), st.binary(max_size=4))
_TARGETS = st.one_of(
    st.sampled_from([b"/", b"/1/q", b"", b"*"]),
    _BYTES.map(lambda query: b"/1/q?" + query),
    _BYTES.map(lambda path: b"/" + path),
    st.binary(max_size=30),
)


def _check(method: bytes, target: bytes, headers: dict[bytes, bytes], body: bytes) -> None:
    chosen = codec.detect_wire(headers)
    try:
        decoded = codec.decode_request(method, target, headers, body)
    except QueueError as refusal:
        encoded = codec.encode_error(refusal, chosen, "request-1")
        assert 400 <= encoded.status < 500
        if encoded.content_type == b"text/xml":
            ElementTree.fromstring(encoded.body)
        else:
            json.loads(encoded.body)
    else:
        assert decoded.wire is chosen
        assert isinstance(decoded.operation, ACTIONS[decoded.action].request)


@_SETTINGS
@given(_METHODS, _TARGETS, _HEADERS, _BYTES)
def test_any_bytes_decode_or_are_refused(
    method: bytes, target: bytes, headers: dict[bytes, bytes], body: bytes
) -> None:
    _check(method, target, headers, body)


@_SETTINGS
@given(st.sampled_from(_NAMES), _BYTES)
def test_any_json_body_of_any_action_decodes_or_is_refused(action: bytes, body: bytes) -> None:
    _check(b"POST", b"/", {b"x-amz-target": b"AmazonSQS." + action}, body)


@_SETTINGS
@given(st.sampled_from(_NAMES), _BYTES)
def test_any_form_of_any_action_decodes_or_is_refused(action: bytes, body: bytes) -> None:
    _check(b"POST", b"/", {}, b"Action=" + action + b"&" + body)


_JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
_MEMBERS = sorted(
    {
        member
        for action in ACTIONS.values()
        for member in (*action.request.__struct_encode_fields__, "Unknown")
    }
)


@_SETTINGS
@given(
    st.sampled_from(_NAMES), st.dictionaries(st.sampled_from(_MEMBERS), _JSON_VALUES, max_size=4)
)
def test_any_json_value_in_any_member_decodes_or_is_refused(
    action: bytes, members: dict[str, object]
) -> None:
    headers = {b"x-amz-target": b"AmazonSQS." + action}

    _check(b"POST", b"/", headers, json.dumps(members).encode())


@_SETTINGS
@given(st.text(max_size=50))
def test_any_text_survives_in_xml(text: str) -> None:
    parsed = ElementTree.fromstring(f"<a>{escape_xml(text)}</a>").text or ""

    assert len(parsed) == len(text)
    assert all(
        got == sent or (got == "\ufffd" and not sent.isprintable())
        for got, sent in zip(parsed, text, strict=True)
    )
