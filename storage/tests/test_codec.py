"""The bytes of format version 2: rows written today must stay readable for ever."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from visibility.contract.death import Death
from visibility.contract.move_task import MessageFilter, MoveTask, Pace, Share
from visibility.contract.outcomes import FailureNote
from visibility.contract.queue_parts import GonePart, Part, PartState
from visibility.contract.stored_message import (
    Hold,
    Lease,
    Origin,
    PreparedDeletes,
    SentElsewhere,
    StoredMessage,
    Tried,
)
from visibility.rows.row_codec import DamagedRecord, decode_row, encode_row
from visibility.rows.row_values import (
    ArchivedMessage,
    ArchiveRow,
    Departure,
    GroupRow,
    NotedParts,
    OutboxRow,
    QueueRow,
    Remembered,
    SealedBatch,
    TransactionRow,
)
from visibility.state.short_answers import AnswersRow, ShortFailures, ShortReceive, ShortSends

MESSAGE_ID = "01234567-89ab-4def-8123-456789abcdef"
GROUP = bytes(range(16))
MESSAGE = StoredMessage(MESSAGE_ID, 1_700_000_000_000, 5, b"hello")
DEAD_LETTER = StoredMessage(
    MESSAGE_ID,
    1,
    5,
    b"hello",
    7,
    "arn:aws:sqs:r:0:q",
    3,
    2,
    GROUP,
    1_700_000_000_001,
    300,
    4,
    6,
    8,
    10,
    Death("expired", 1_700_000_000_002, 3),
    1_700_000_000_002,
    Origin("id", 1_700_000_000_000, 6, 3, 2, 5, Tried(MESSAGE_ID, 7, 4, 9, 1), "id", 8),
)
LEASE = Lease(300, 1_700_000_030_000, 2, 1, 1_700_000_000_000, 1_700_000_000_001)
MOVED_LEASE = Lease(
    300, 0, 2, 1, 5, 6, GROUP, 1_700_000_000_002, 70_000, 1_700_000_000_003, 9, 10, 5, 70_000
)
QUEUE = QueueRow(70_000, 12, 9, 0)
FIFO_QUEUE = QueueRow(
    *(70_000, 12, 9, 4, 3, 2, 1, 1_700_000_000_000, True, 1_700_000_000_001, 7, 60_000, 300),
    levels=[(5, 9, 300)],
    size=70_000,
    sized_from=7,
    rescued=5,
    passed_ms=1_700_000_000_002,
    has_failure_notes=True,
    heir_id=70_001,
)
NOTE = FailureNote(300, 257, bytes(range(16)), 70_000, b"sealed")
HOLD = Hold(300, 1_700_000_000_000, "ann", "T-1", 1_700_000_060_000)
GROUP_ROW = GroupRow(3, 300, 70_000, 2)
SENT = Remembered(1_700_000_000_000, MESSAGE_ID, 300)
ATTEMPT = Remembered(1_700_000_000_000, "", 0, [(300, 2, 1_700_000_030_000), (301, 1, 6)])
TASK = MoveTask(300, "task", "arn:s", None, 500, 1_700_000_000_000, 70_000, 70_001)
ENDED_TASK = MoveTask(
    1,
    "task",
    "arn:s",
    "arn:d",
    0,
    5,
    4,
    300,
    9,
    3,
    "FAILED",
    "no such queue",
    [7, 300],
    2,
    ["arn:t"],
    MessageFilter("id", "g", "s", 1, 2, 3, 4, "text", "name=value", "a.b=c", "e8586d58a7a55461"),
    Pace(60, 10, 5),
    "canary",
    7,
    2,
    80,
    1,
    301,
    "arn:u",
    "fixed",
    9,
    ["arn:s"],
    "other",
    10,
    True,
    '{"a":1}',
    [Share(16, True, [7], 5, True, True, True, 4, 3, 2, 1, 9, "no such queue")],
    1,
    8,
    6,
    True,
)
COUNT = 4_096
ARCHIVED = ArchivedMessage("arn:q", "expired", 1_700_000_000_000, 300, 2, 5, MESSAGE)
BATCH = SealedBatch(300, 70_000, 70_001, 9, 1_700_000_000_000, {"123456789012": 9})
ANSWERS = AnswersRow(
    [f"request-{number}" for number in range(6)],
    [
        None,
        MESSAGE_ID,
        7,
        ShortSends([(MESSAGE_ID, "1"), (MESSAGE_ID, None)], 1),
        ShortReceive(300, [(70_000, 2)]),
        ShortFailures([("0", "InvalidParameterValue", "no")]),
    ],
)
ARCHIVE = ArchiveRow("5f", 70_000, 300, 299, 69_999, 9, 1_700_000_000_000, 4, {"123456789012": 9})
SENT_ELSEWHERE = SentElsewhere(GROUP, 5, GROUP, 1_700_000_000_000, 60_000, 1_700_000_000_001)
PREPARED = PreparedDeletes(GROUP, GROUP, [(300, LEASE)])
DEPARTURE = Departure(
    GROUP,
    300,
    5,
    MOVED_LEASE,
    MESSAGE,
    2,
    7,
    "arn:d",
    DEAD_LETTER,
    True,
    True,
    "task",
    True,
    HOLD,
    6,
    SENT_ELSEWHERE,
    PREPARED,
)
OLD_DEPARTURE = (
    "0192186c6a9cc410000102030405060708090a0b0c0d0e0fcd012c059ccd012c"
    "0002010506c410000102030405060708090a0b0c0d0e0fcf0000018bcfe56802"
    "ce00011170cf0000018bcfe56803090a9ed92430313233343536372d38396162"
    "2d346465662d383132332d343536373839616263646566cf0000018bcfe56800"
    "05c40568656c6c6f00c00000c40000000000000207a561726e3a649ed9243031"
    "3233343536372d383961622d346465662d383132332d34353637383961626364"
    "65660105c40568656c6c6f07b161726e3a6177733a7371733a723a303a710302"
    "c410000102030405060708090a0b0c0d0e0fcf0000018bcfe56801cd012c0406"
    "08c3c3a47461736b"
)
"""As written before messages went from part to part of a queue."""
OUTBOX = OutboxRow(GROUP, 70_000)
TRANSACTION = TransactionRow(1_700_000_000_000, GROUP, [(MESSAGE_ID, "1"), (None, None)])
NOTED = NotedParts(
    "123456789012",
    "eu",
    "orders",
    300,
    70_000,
    5,
    (
        Part(16, 70_000, 5, PartState.OPEN, 9, 300),
        Part(32, 70_001, 6, PartState.DRAINING, 0, 8, 16),
    ),
    48,
    64,
    (GonePart(0, 16, 1_700_000_000_000, 7),),
    1_700_000_000_001,
)
OLD_NOTED = (
    "01f56e3c339aac313233343536373839303132a26575a66f7264657273cd012cce00011170"
    "05929810ce00011170050009cd012c00009820ce000111710601000810003040"
    "91940010cf0000018bcfe5680007"
)
"""As written before notes knew when the shard's part had left."""
OLD_LEASE = "01f092953c99cd012ccf0000018bcfe5dd300201cf0000018bcfe56800cf0000018bcfe56801c4000000"
"""As written before leases knew when their message was sent, and for how long it waits."""
OLD_QUEUE = "012eb396179cce000111700c090000000000c2000001"
"""As written before queues counted their messages in the outbox."""
OLD_TASK = (
    "0194c11f589dcd012ca47461736ba561726e3a73c0cd01f4cf0000018bcfe56800ce000111"
    "70ce000111710000a752554e4e494e47c0c0"
)
"""The form before move tasks counted messages that stayed."""
TASK_WITHOUT_A_FILTER = (
    "01f64e663d"
    "9fcd012ca47461736ba561726e3a73c0cd01f4cf0000018bcfe56800ce000111"
    "70ce000111710000a752554e4e494e47c0c000c0"
)
"""The form before filters, paces and undos."""
TASK_WITHOUT_A_PLAN = (
    "01"
    "c723c14c"
    "dc001dcd012ca47461736ba561726e3a73c0cd01f4cf0000018bcfe56800ce00"
    "011170ce000111710000a752554e4e494e47c0c000c0c093000000a000000000"
    "00a0a00090a000"
)
"""The form before the messages of a task could be those that a plan counted."""
TASK_WITHOUT_SHARES = (
    "01"
    "b16e8a46"
    "dc001fcd012ca47461736ba561726e3a73c0cd01f4cf0000018bcfe56800ce00"
    "011170ce000111710000a752554e4e494e47c0c000c0c093000000a000000000"
    "00a0a00090a000c2a0"
)
"""The form before other parts of a queue had shares in a task."""
OLD_MESSAGE = (
    "01"
    "b9f8e718"
    "9cd92430313233343536372d383961622d346465662d383132332d3435363738"
    "39616263646566cf0000018bcfe5680005c40568656c6c6f00c00000c4000000"
    "00"
)
"""As written before messages knew when they came from another queue."""

GOLDEN: dict[str, tuple[object, str]] = {
    "message": (
        MESSAGE,
        "01"
        "70dc29d7"
        "dc0012d92430313233343536372d383961622d346465662d383132332d343536"
        "373839616263646566cf0000018bcfe5680005c40568656c6c6f00c00000c400"
        "000000000000c000c0",
    ),
    "dead letter": (
        DEAD_LETTER,
        "01"
        "f33492b7"
        "dc0012d92430313233343536372d383961622d346465662d383132332d343536"
        "3738396162636465660105c40568656c6c6f07b161726e3a6177733a7371733a"
        "723a303a710302c410000102030405060708090a0b0c0d0e0fcf0000018bcfe5"
        "6801cd012c0406080a93a765787069726564cf0000018bcfe5680203cf000001"
        "8bcfe5680299a26964cf0000018bcfe568000603020595d92430313233343536"
        "372d383961622d346465662d383132332d343536373839616263646566070409"
        "01a2696408",
    ),
    "lease": (
        LEASE,
        "01"
        "1308ac27"
        "9ecd012ccf0000018bcfe5dd300201cf0000018bcfe56800cf0000018bcfe568"
        "01c40000000000000000",
    ),
    "moved lease": (
        MOVED_LEASE,
        "01"
        "a3f96e4c"
        "9ecd012c0002010506c410000102030405060708090a0b0c0d0e0fcf0000018b"
        "cfe56802ce00011170cf0000018bcfe56803090a05ce00011170",
    ),
    "queue": (
        QUEUE,
        "01123d4343dc0014ce000111700c090000000000c2000001009000ff0000c200",
    ),
    "FIFO queue": (
        FIFO_QUEUE,
        "017ea13ff7dc0014ce000111700c0904030201cf0000018bcfe56800c3cf0000"
        "018bcfe5680107cdea60cd012c91930509cd012cce000111700705cf0000018b"
        "cfe56802c3ce00011171",
    ),
    "group": (
        GROUP_ROW,
        "012bcaf66c9403cd012cce0001117002",
    ),
    "sent": (
        SENT,
        "01"
        "ed9802fe"
        "94cf0000018bcfe56800d92430313233343536372d383961622d346465662d38"
        "3132332d343536373839616263646566cd012c90",
    ),
    "attempt": (
        ATTEMPT,
        "010f60dce694cf0000018bcfe56800a0009293cd012c02cf0000018bcfe5dd3093cd012d0106",
    ),
    "task": (
        TASK,
        "01"
        "2840fd37"
        "dc0024cd012ca47461736ba561726e3a73c0cd01f4cf0000018bcfe56800ce00"
        "011170ce000111710000a752554e4e494e47c0c000c0c093000000a000000000"
        "00a0a00090a000c2a090000000c2",
    ),
    "ended task": (
        ENDED_TASK,
        "01"
        "ad151a46"
        "dc002401a47461736ba561726e3a73a561726e3a64000504cd012c0903a64641"
        "494c4544ad6e6f20737563682071756575659207cd012c0291a561726e3a749b"
        "a26964a167a17301020304a474657874aa6e616d653d76616c7565a5612e623d"
        "63b065383538366435386137613535343631933c0a05a663616e617279070250"
        "01cd012da561726e3a75a566697865640991a561726e3a73a56f746865720ac3"
        "a77b2261223a317d919d10c3910705c3c3c30403020109ad6e6f207375636820"
        "7175657565010806c3",
    ),
    "count": (
        COUNT,
        "012cf4ce50cd1000",
    ),
    "archived": (
        ARCHIVED,
        "01"
        "5e84cf8c"
        "97a561726e3a71a765787069726564cf0000018bcfe56800cd012c0205dc0012"
        "d92430313233343536372d383961622d346465662d383132332d343536373839"
        "616263646566cf0000018bcfe5680005c40568656c6c6f00c00000c400000000"
        "000000c000c0",
    ),
    "batch": (
        BATCH,
        "0109db98d596cd012cce00011170ce0001117109cf0000018bcfe5680081ac31323334353637383930313209",
    ),
    "archive": (
        ARCHIVE,
        "01"
        "a9dab43b"
        "99a23566ce00011170cd012ccd012bce0001116f09cf0000018bcfe568000481"
        "ac31323334353637383930313209",
    ),
    "answers": (
        ANSWERS,
        "014762f8ef9296a9726571756573742d30a9726571756573742d31a972657175"
        "6573742d32a9726571756573742d33a9726571756573742d34a9726571756573"
        "742d3596c0d92430313233343536372d383961622d346465662d383132332d34"
        "35363738396162636465660793019292d92430313233343536372d383961622d"
        "346465662d383132332d343536373839616263646566a13192d9243031323334"
        "3536372d383961622d346465662d383132332d343536373839616263646566c0"
        "019302cd012c9192ce000111700292039193a130b5496e76616c696450617261"
        "6d6574657256616c7565a26e6f",
    ),
    "departure": (
        DEPARTURE,
        "01"
        "2015fb6e"
        "dc0011c410000102030405060708090a0b0c0d0e0fcd012c059ecd012c000201"
        "0506c410000102030405060708090a0b0c0d0e0fcf0000018bcfe56802ce0001"
        "1170cf0000018bcfe56803090a05ce00011170dc0012d9243031323334353637"
        "2d383961622d346465662d383132332d343536373839616263646566cf000001"
        "8bcfe5680005c40568656c6c6f00c00000c400000000000000c000c00207a561"
        "726e3a64dc0012d92430313233343536372d383961622d346465662d38313233"
        "2d3435363738396162636465660105c40568656c6c6f07b161726e3a6177733a"
        "7371733a723a303a710302c410000102030405060708090a0b0c0d0e0fcf0000"
        "018bcfe56801cd012c0406080a93a765787069726564cf0000018bcfe5680203"
        "cf0000018bcfe5680299a26964cf0000018bcfe568000603020595d924303132"
        "33343536372d383961622d346465662d383132332d3435363738396162636465"
        "6607040901a2696408c3c3a47461736bc395cd012ccf0000018bcfe56800a361"
        "6e6ea3542d31cf0000018bcfe652600696c410000102030405060708090a0b0c"
        "0d0e0f05c410000102030405060708090a0b0c0d0e0fcf0000018bcfe56800cd"
        "ea60cf0000018bcfe5680193c410000102030405060708090a0b0c0d0e0fc410"
        "000102030405060708090a0b0c0d0e0f9192cd012c9ecd012ccf0000018bcfe5"
        "dd300201cf0000018bcfe56800cf0000018bcfe56801c40000000000000000",
    ),
    "held": (
        HOLD,
        "019453281095cd012ccf0000018bcfe56800a3616e6ea3542d31cf0000018bcfe65260",
    ),
    "transaction": (
        TRANSACTION,
        "01"
        "aedeb750"
        "93cf0000018bcfe56800c410000102030405060708090a0b0c0d0e0f9292d924"
        "30313233343536372d383961622d346465662d383132332d3435363738396162"
        "63646566a13192c0c0",
    ),
    "noted parts": (
        NOTED,
        "0121cc8e709bac313233343536373839303132a26575a66f7264657273cd012cce00011170059298"
        "10ce00011170050009cd012c00009820ce00011171060100081000304091940010cf0000018bcfe5"
        "680007cf0000018bcfe56801",
    ),
    "failure note": (
        NOTE,
        "016cbbb7c895cd012ccd0101c410000102030405060708090a0b0c0d0e0fce00011170c4067365616c6564",
    ),
    "outbox": (
        OUTBOX,
        "010f6823a792c410000102030405060708090a0b0c0d0e0fce00011170",
    ),
}
rows = pytest.mark.parametrize(("row", "golden"), GOLDEN.values(), ids=GOLDEN)
KINDS = (
    StoredMessage,
    Lease,
    QueueRow,
    GroupRow,
    Remembered,
    MoveTask,
    ArchivedMessage,
    SealedBatch,
    ArchiveRow,
    AnswersRow,
    Departure,
    OutboxRow,
    TransactionRow,
    NotedParts,
    Hold,
    FailureNote,
    int,
)
KEY = b"key"


@rows
def test_row_is_written_as_these_bytes_and_read_from_them(row: object, golden: str) -> None:
    assert encode_row(row).hex() == golden
    assert decode_row(type(row), KEY, bytes.fromhex(golden)) == row


def test_every_kind_of_row_is_among_them() -> None:
    assert {type(row) for row, _ in GOLDEN.values()} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_no_field_can_be_added_or_change_its_place_unseen(kind: type[msgspec.Struct]) -> None:
    """One golden row of each kind has every field set to something else than its default."""
    of_kind = [row for row, _ in GOLDEN.values() if type(row) is kind]

    for field in msgspec.structs.fields(kind):
        values = [getattr(row, field.name) for row in of_kind]
        default = [] if field.name in ("deliveries", "levels") else field.default
        assert any(value != default for value in values), field.name


def test_a_lease_of_before_is_read_with_the_defaults_of_what_was_added() -> None:
    assert decode_row(Lease, KEY, bytes.fromhex(OLD_LEASE)) == LEASE


def test_a_departure_of_before_is_read_with_the_defaults_of_what_was_added() -> None:
    before = msgspec.structs.replace(
        DEPARTURE,
        transfers=False,
        hold=None,
        sent=None,
        prepared=None,
        due_ms=-1,
        lease=msgspec.structs.replace(MOVED_LEASE, level=0, size=0),
        arriving=msgspec.structs.replace(
            DEAD_LETTER, level=0, death=None, sender_ms=0, origin=None
        ),
    )
    assert decode_row(Departure, KEY, bytes.fromhex(OLD_DEPARTURE)) == before


def test_a_queue_of_before_is_read_with_the_default_of_what_was_added() -> None:
    assert decode_row(QueueRow, KEY, bytes.fromhex(OLD_QUEUE)) == QUEUE


def test_a_task_of_before_is_read_with_the_default_of_what_was_added() -> None:
    assert decode_row(MoveTask, KEY, bytes.fromhex(OLD_TASK)) == TASK
    assert decode_row(MoveTask, KEY, bytes.fromhex(TASK_WITHOUT_A_FILTER)) == TASK
    assert decode_row(MoveTask, KEY, bytes.fromhex(TASK_WITHOUT_A_PLAN)) == TASK
    assert decode_row(MoveTask, KEY, bytes.fromhex(TASK_WITHOUT_SHARES)) == TASK


def test_a_message_of_before_is_read_with_the_defaults_of_what_was_added() -> None:
    assert decode_row(StoredMessage, KEY, bytes.fromhex(OLD_MESSAGE)) == MESSAGE


def test_noted_parts_of_before_are_read_with_the_default_of_what_was_added() -> None:
    before = msgspec.structs.replace(NOTED, left_at_ms=0)
    assert decode_row(NotedParts, KEY, bytes.fromhex(OLD_NOTED)) == before


@rows
def test_any_flipped_bit_is_a_damaged_record(row: object, golden: str) -> None:
    value = encode_row(row)

    for bit in range(len(value) * 8):
        flipped = bytearray(value)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedRecord):
            decode_row(type(row), KEY, bytes(flipped))


@rows
def test_a_value_that_was_cut_or_goes_on_is_a_damaged_record(row: object, golden: str) -> None:
    value = encode_row(row)

    for length in range(len(value)):
        with pytest.raises(DamagedRecord):
            decode_row(type(row), KEY, value[:length])
    with pytest.raises(DamagedRecord):
        decode_row(type(row), KEY, value + b"\0")


@given(st.binary(max_size=60))
def test_any_bytes_are_a_damaged_record_that_names_its_key(rubbish: bytes) -> None:
    for kind in KINDS:
        with pytest.raises(DamagedRecord, match=KEY.hex()) as caught:
            decode_row(kind, KEY, rubbish)
        assert caught.value.key == KEY


def test_a_row_of_another_kind_is_a_damaged_record() -> None:
    for row, other in [
        (QUEUE, StoredMessage),
        (MESSAGE, Lease),
        (LEASE, StoredMessage),
        (COUNT, Lease),
        (LEASE, int),
        (SENT, MoveTask),
        (MESSAGE, GroupRow),
    ]:
        with pytest.raises(DamagedRecord):
            decode_row(other, KEY, encode_row(row))


def test_an_unknown_version_of_a_row_is_named() -> None:
    value = b"\x02" + encode_row(QUEUE)[1:]

    with pytest.raises(DamagedRecord, match="unknown version 2"):
        decode_row(QueueRow, KEY, value)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [(StoredMessage, 4), (Lease, 6), (QueueRow, 4), (GroupRow, 0), (Remembered, 1), (MoveTask, 8)],
)
def test_a_row_without_the_fields_that_came_later_has_their_defaults(
    kind: type[msgspec.Struct], fields: int
) -> None:
    row = next(row for row, _ in GOLDEN.values() if type(row) is kind)
    first = [getattr(row, name) for name in kind.__struct_fields__[:fields]]

    assert decode_row(kind, KEY, encode_row(first)) == kind(*first)
