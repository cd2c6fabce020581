"""The memory of large requests and answers: one bound for all clients, and shares of it for the
answers to an account and to a user."""

from __future__ import annotations

from auth.caller import Caller
from visibility.rules.handing_out import COUNTED_BYTES_MIN as COUNTED_BYTES_MIN

PAGES = Caller("", "", "pages")
"""Takes the place of the caller for pages that are not SQS's: they have one share together."""
_MESSAGE_BYTES = 1 << 20
"""The largest message."""
_PARTS = (2, 4)
"""The answers to one account take the first part of the memory at most, those to one user the
second: others have the rest, and sends."""


class RequestMemory:
    """Bytes of requests that were received and not answered yet, and of answers that were decided
    and not read yet, over all connections.

    Those below some KiB are not counted: the number of connections bounds them.
    """

    __slots__ = ("_answers", "bytes_max", "held_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._answers: dict[tuple[str, str], int] = {}
        """Bytes of answers by account and user; those of all users of an account have no user."""

    def take(self, size: int) -> bool:
        """Hold the bytes of a request; False, with nothing taken, above the limit."""
        if self.held_bytes + size > self.bytes_max:
            return False
        self.held_bytes += size
        return True

    def give_back(self, size: int) -> None:
        """Release bytes that are answered, or whose client is gone."""
        self.held_bytes -= size

    @property
    def is_exceeded(self) -> bool:
        """True if more is held than may be: what was written without asking."""
        return self.held_bytes > self.bytes_max

    # -- answers -----------------------------------------------------------------------------------

    @property
    def answer_bytes(self) -> int:
        """The part of the bytes that are answers'."""
        return sum(held for (_, user), held in self._answers.items() if not user)

    def has_room(self, caller: Caller, size: int, *, may_exceed: bool) -> bool:
        """True if an answer of this size has room.

        `may_exceed`: the only answer to a user or an account may exceed its share, and the only one
        of all the limit, so that each message can be received.
        """
        if self.held_bytes + size > self.bytes_max:
            return may_exceed and not self._answers
        for held, part in zip(self._held_by(caller), _PARTS, strict=True):
            if held + size > self.bytes_max // part and not (may_exceed and not held):
                return False
        return True

    def is_short_for(self, caller: Caller) -> bool:
        """True if another large message has no room."""
        return bool(self._answers) and not self.has_room(caller, _MESSAGE_BYTES, may_exceed=False)

    def hold(self, caller: Caller, size: int) -> None:
        """Hold the bytes of an answer; a negative size releases them."""
        self.held_bytes += size
        for owner in ((caller.account, ""), (caller.account, caller.principal)):
            held = self._answers.pop(owner, 0) + size
            if held:
                self._answers[owner] = held

    def _held_by(self, caller: Caller) -> tuple[int, int]:
        """The bytes of answers to the account, and to the user."""
        held = self._answers.get
        return held((caller.account, ""), 0), held((caller.account, caller.principal), 0)
