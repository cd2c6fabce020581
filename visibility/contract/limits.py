"""Every limit that SQS sets, once: value, unit in the name or the comment, source.

Nothing else may be in this file, and no other file may repeat one of these numbers. A Range has
both ends inclusive. Sources: the service model and API reference of 2025, unless a line says
`recorded` (seen on AWS). Our own bounds (memory, connections, caches) are settings, not limits of
SQS, and are not here.
"""

from __future__ import annotations

from typing import NamedTuple


class Range(NamedTuple):
    """The least and greatest value allowed, and the default."""

    low: int
    high: int
    default: int | None = None


KIB = 1024  # bytes
DAY = 86_400  # seconds

# -- batches -------------------------------------------------------------------------------------

BATCH_ENTRIES_MAX = 10  # entries; recorded
BATCH_ENTRY_ID_LENGTH_MAX = 80  # characters; recorded
BATCH_BYTES_MAX = 1024 * KIB  # bodies and attributes, regardless of the queue's own limit; recorded

# -- a message -----------------------------------------------------------------------------------

MESSAGE_ATTRIBUTES_MAX = 10  # attributes of a message
MESSAGE_ATTRIBUTE_NAME_LENGTH_MAX = 256  # characters; 257 was refused
MESSAGE_ATTRIBUTE_TYPE_LENGTH_MAX = 256  # characters, custom suffix included
NUMBER_DIGITS_MAX = 38  # significant digits of a Number attribute
NUMBER_MAGNITUDE = Range(
    -128, 126
)  # powers of ten that a Number attribute lies between, or it is 0
TOKEN_LENGTH_MAX = 128  # characters of a group, deduplication or attempt id; recorded
DEDUPLICATION_WINDOW_SECONDS = 300  # from the first send
SEQUENCE_NUMBER_DIGITS = 20  # decimal digits

# -- attributes of a queue -----------------------------------------------------------------------

DELAY_SECONDS = Range(0, 900, 0)  # seconds; also of a message; default recorded
MAXIMUM_MESSAGE_SIZE = Range(KIB, 1024 * KIB, 1024 * KIB)  # bytes; default recorded, 2025
MESSAGE_RETENTION_PERIOD = Range(60, 14 * DAY, 4 * DAY)  # seconds; default recorded
RECEIVE_MESSAGE_WAIT_TIME_SECONDS = Range(0, 20, 0)  # seconds; default recorded
VISIBILITY_TIMEOUT = Range(0, 43_200, 30)  # seconds; high: also the total of one receive
KMS_DATA_KEY_REUSE_PERIOD_SECONDS = Range(60, DAY, 300)  # seconds
MAX_RECEIVE_COUNT = Range(1, 1_000)  # receives before a move to the dead-letter queue
POLICY_BYTES_MAX = 8_192  # of a queue's policy
POLICY_STATEMENTS_MAX = 20  # of a queue's policy
REDRIVE_SOURCE_QUEUE_ARNS_MAX = 10  # ARNs in a RedriveAllowPolicy

# -- receiving -----------------------------------------------------------------------------------

MAX_NUMBER_OF_MESSAGES = Range(1, 10, 1)  # messages of one receive; recorded
WAIT_TIME_SECONDS = Range(0, 20)  # seconds; recorded; the queue's attribute is the default
IN_FLIGHT_MAX = 120_000  # messages of one queue, standard and FIFO

# -- queues --------------------------------------------------------------------------------------

QUEUE_NAME_LENGTH_MAX = 80  # characters, `.fifo` included
QUEUE_REUSE_SECONDS = 60  # from DeleteQueue to CreateQueue of the same name
PURGE_INTERVAL_SECONDS = 60  # between two PurgeQueue of one queue; recorded
LIST_RESULTS = Range(1, 1_000, 1_000)  # queues on one page
ACCOUNT_ID_DIGITS = 12  # decimal digits
TAGS_MAX = 50  # tags of a queue; AWS recommends no more, emulators refuse more
TAG_KEY_LENGTH_MAX = 128  # characters
TAG_VALUE_LENGTH_MAX = 256  # characters

# -- permissions ---------------------------------------------------------------------------------

LABEL_LENGTH_MAX = 80  # characters
PERMISSION_ACTIONS_MAX = 7  # actions of one AddPermission, and of one statement of a policy

# -- held messages, which SQS has not ------------------------------------------------------------

HELD_UNTIL_MS = 1 << 52  # end of their leases: later than any time, and exact in JSON
TAKEN_UNTIL_MS = HELD_UNTIL_MS - 1  # that of messages which no one receives again
PREPARED_UNTIL_MS = HELD_UNTIL_MS - 2  # that of messages whose delete is prepared
HELD_MAX = 1_000  # of one queue, since their marks are in memory
HOLD_OWNER_LENGTH_MAX = 100  # characters
HOLD_REFERENCE_LENGTH_MAX = 200  # characters
DELETE_UNDO_SECONDS_MAX = 3_600  # for which a delete can be undone

# -- move tasks ----------------------------------------------------------------------------------

MOVE_RATE = Range(1, 500)  # messages a second
MOVE_TASK_RESULTS = Range(1, 10, 1)  # tasks of one listing
MOVE_TASK_SECONDS_MAX = 36 * 3_600  # for which a task may run
MOVE_TASKS_PER_ACCOUNT_MAX = 100  # running tasks
MOVE_SELECTED_MAX = (
    1_000  # messages that one task names; ours, since its row is written at each step
)
