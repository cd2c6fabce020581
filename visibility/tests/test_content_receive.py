"""The members of a received message, made from its stored form."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from visibility.content.content import selection_of
from visibility.contract import errors
from visibility.contract.death import CAUSE_ATTRIBUTE, Death
from visibility.contract.operations import MessageAttributeValue, ReceiveMessage, SendMessage
from visibility.contract.results import Message, ReceivedAttributeValue
from visibility.tests.test_content import TRACE, URL, received, sent, text


def test_without_names_only_the_body_and_its_digest_come_back() -> None:
    content = sent(
        SendMessage(URL, "a\r\n&quot;", message_attributes={"k": text("x")}), trace=TRACE
    )

    assert received(content) == Message(
        "id", "handle", hashlib.md5(b"a\r\n&quot;").hexdigest(), "a\r\n&quot;"
    )


def test_all_system_attributes_are_those_that_exist() -> None:
    plain = received(sent(SendMessage(URL, "b")), ["All"])
    rich = received(
        sent(SendMessage(URL, "b", message_group_id="g"), trace=TRACE), ["All"], source="arn"
    )

    assert plain.attributes == {
        "SenderId": "AIDA",
        "SentTimestamp": "1700000000123",
        "ApproximateReceiveCount": "2",
        "ApproximateFirstReceiveTimestamp": "1700000000456",
    }
    assert rich.attributes == plain.attributes | {
        "MessageGroupId": "g",
        "AWSTraceHeader": TRACE,
        "DeadLetterQueueSourceArn": "arn",
    }
    assert plain.message_attributes is None
    assert received(sent(SendMessage(URL, "b")), ["SequenceNumber"]).attributes is None


def test_a_sent_trace_header_wins_over_the_one_of_the_request_and_has_its_digest() -> None:
    content = sent(
        SendMessage(URL, "b", message_system_attributes={"AWSTraceHeader": text(TRACE)}),
        trace="Root=other",
    )

    assert content.md5_of_message_system_attributes == "5ae4d5d7636402d80f4eb6d213245a88"
    assert content.md5_of_message_attributes is None
    assert received(content, ["AWSTraceHeader"]).attributes == {"AWSTraceHeader": TRACE}


def test_an_unprintable_trace_header_of_a_request_is_ignored() -> None:
    content = sent(SendMessage(URL, "b"), trace="Root=\udc80")

    assert received(content, ["AWSTraceHeader"]).attributes is None


NAMES = {"General": "Kenobi", "Hello": "There", "Help.Me": "Me"}
RECORDED_FILTERS = [
    (["All"], set(NAMES), "4c360f3fdafd970e05fae2f149d997f5"),
    (["*"], set(NAMES), "4c360f3fdafd970e05fae2f149d997f5"),
    ([".*"], set(NAMES), "4c360f3fdafd970e05fae2f149d997f5"),
    (["All", "Hello"], set(NAMES), "4c360f3fdafd970e05fae2f149d997f5"),
    (["General", "Hello"], {"General", "Hello"}, "fca026605781cb4126a1e9044df24232"),
    (["Hello", "Unknown", "Help"], {"Hello"}, "a311262e065454b75da111d535b8dacd"),
    (["Hel.*"], {"Hello", "Help.Me"}, "83fee93c1bcd8b9a5a923ffacdc636c7"),
    (["AWS.x", "..foo"], set(), None),
    ([], set(), None),
]


@pytest.mark.parametrize(("asked", "names", "digest"), RECORDED_FILTERS)
def test_the_digest_covers_only_the_attributes_the_filter_returns(
    asked: list[str], names: set[str], digest: str | None
) -> None:
    attributes = {name: text(value) for name, value in NAMES.items()}
    content = sent(SendMessage(URL, "b", message_attributes=attributes))

    message = received(content, user=asked)

    assert content.md5_of_message_attributes == "4c360f3fdafd970e05fae2f149d997f5"
    assert message.md5_of_message_attributes == digest
    assert set(message.message_attributes or {}) == names
    assert message.attributes is None


def test_the_new_list_of_system_attribute_names_decides_over_the_old() -> None:
    both = selection_of(
        ReceiveMessage(
            attribute_names=["SenderId"], message_system_attribute_names=["SentTimestamp"]
        )
    )
    old = selection_of(ReceiveMessage(attribute_names=["All"]))

    assert both.system == ("SentTimestamp",)
    assert len(old.system) == 9


def test_selections_are_remembered_but_not_without_bound() -> None:
    small = ReceiveMessage(message_attribute_names=["a"])
    large = ReceiveMessage(message_attribute_names=["a" * 2000])

    assert selection_of(small) is selection_of(small)
    assert selection_of(large) is not selection_of(large)
    assert selection_of(ReceiveMessage()) is selection_of(ReceiveMessage(attribute_names=[]))


LEGAL_TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\ufffe\uffff").filter(
        lambda c: c >= " " or c in "\t\n\r"
    ),
    min_size=1,
    max_size=60,
)
LEGAL_NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True)
LEGAL_VALUES = st.one_of(
    st.builds(MessageAttributeValue, st.sampled_from(["String", "String.x"]), LEGAL_TEXT),
    st.builds(
        MessageAttributeValue,
        st.sampled_from(["Number", "Number.int"]),
        st.integers(1 - 10**38, 10**38 - 1).map(str),
    ),
    st.builds(
        MessageAttributeValue,
        st.sampled_from(["Binary", "Binary.gz"]),
        st.none(),
        st.binary(min_size=1, max_size=60),
    ),
)


@given(LEGAL_TEXT, st.dictionaries(LEGAL_NAMES, LEGAL_VALUES, max_size=10))
def test_any_legal_message_comes_back_as_it_was_sent(
    body: str, attributes: dict[str, MessageAttributeValue]
) -> None:
    content = sent(SendMessage(URL, body, message_attributes=attributes or None))

    message = received(content, user=["All"])

    assert message.body == body
    assert message.md5_of_body == content.md5_of_message_body
    assert message.md5_of_body == hashlib.md5(body.encode()).hexdigest()
    assert message.md5_of_message_attributes == content.md5_of_message_attributes
    assert (message.message_attributes or {}) == {
        name: ReceivedAttributeValue(value.string_value, value.binary_value, value.data_type)
        for name, value in attributes.items()
    }


@given(st.text(min_size=1), st.text(), st.text(max_size=5))
def test_any_text_is_stored_or_refused_and_nothing_else(body: str, name: str, value: str) -> None:
    operation = SendMessage(URL, body, message_attributes={name: text(value)})

    try:
        content = sent(operation)
    except errors.QueueError:
        return
    assert received(content, user=["All"]).body == body


# -- the cause of a dead letter --------------------------------------------------------------------

DEATH = Death("expired", 1_700_000_000_789, 2)


def test_the_cause_of_a_dead_letter_comes_only_if_it_is_asked_for_by_name() -> None:
    content = sent(SendMessage(URL, "b"))

    every = received(content, ["All"], source="arn", death=DEATH)
    named = received(content, [CAUSE_ATTRIBUTE], source="arn", death=DEATH)
    both = received(content, ["All", CAUSE_ATTRIBUTE], source="arn", death=DEATH)

    cause = '{"cause":"expired","time":1700000000789,"source":"arn","hops":2}'
    assert every.attributes is not None
    assert CAUSE_ATTRIBUTE not in every.attributes
    assert named.attributes == {CAUSE_ATTRIBUTE: cause}
    assert both.attributes == every.attributes | {CAUSE_ATTRIBUTE: cause}


@pytest.mark.parametrize(("source", "death"), [(None, None), ("arn", None), (None, DEATH)])
def test_a_message_that_is_no_dead_letter_or_an_old_one_has_no_cause(
    source: str | None, death: Death | None
) -> None:
    message = received(sent(SendMessage(URL, "b")), [CAUSE_ATTRIBUTE], source=source, death=death)

    assert message.attributes is None
