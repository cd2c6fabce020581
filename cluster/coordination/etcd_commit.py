"""Transactions of etcd whose outcome is found out when no answer came.

Each writes its id into a slot, a key of this process, and requires the slot to be as this process
left it. Without an answer the slot tells: it has the id, or it is written anew, and from then on
the transaction can never happen and may be sent again. Nothing writes a slot without that
condition: a transaction that comes late would hide the outcome of a later one.
"""

from __future__ import annotations

from typing import NamedTuple

from cluster.coordination import etcd_messages
from cluster.coordination.coordination import (
    Conflict,
    Done,
    LeaseLost,
    Outcome,
    Transaction,
    Unavailable,
    Unknown,
)
from cluster.coordination.etcd_client import NOT_FOUND, Deadline, EtcdClient, Refused
from cluster.coordination.etcd_wire import NoAnswer

_DONE, _NEVER = b" done", b" never"


class Slot:
    """The key that tells what became of one transaction at a time."""

    def __init__(self, key: bytes, mark: bytes, writer: str) -> None:
        """`mark` is a key that is written after a conflict, so that the watch shows its revision.
        `writer` names the process, and is never used again."""
        self.key = key
        self.mark = mark
        self.revision: int | None = None
        """Revision of the key as this process left it, None before it is read."""
        self._writer = writer
        self._number = 0

    def next_id(self) -> bytes:
        """An id for a transaction."""
        self._number += 1
        return f"{self._writer}.{self._number}".encode()

    def is_of_this_process(self, value: bytes) -> bool:
        """True for what this process wrote into the slot."""
        return value.startswith(self._writer.encode() + b".")


class _Sent(NamedTuple):
    """A transaction on its way."""

    request_id: bytes
    slot_revision: int
    """The revision of the slot that it requires."""


class EtcdCommit:
    """One transaction, sent until its outcome is known or time is over."""

    def __init__(
        self,
        client: EtcdClient,
        slot: Slot,
        transaction: Transaction,
        prefix: bytes,
        after_s: float,
    ) -> None:
        """The slot belongs to this commit while it runs."""
        self._client = client
        self._slot = slot
        self._transaction = transaction
        self._prefix = prefix
        self._deadline = Deadline(after_s)

    async def run(self) -> Outcome:
        """Commit it."""
        reason, failures = "no time left", 0
        while self._deadline.left_s():
            try:
                sent = await self._begin()
                outcome = await self._send(sent)
            except Refused as error:
                return LeaseLost() if error.code == NOT_FOUND else Unavailable(str(error))
            except NoAnswer as error:
                return Unavailable(str(error))
            if isinstance(outcome, NoAnswer):
                reason = str(outcome)
                outcome = await self._settle(sent) if outcome.was_sent else None
            if outcome is not None:
                return outcome
            failures += 1
            await self._client.pause(failures)
        return Unavailable(reason)

    # -- send --------------------------------------------------------------------------------------

    async def _begin(self) -> _Sent:
        """A new id. Raises Refused, NoAnswer."""
        if self._slot.revision is None:
            answer = await self._client.ask(
                etcd_messages.RANGE,
                etcd_messages.Range(self._slot.key),
                etcd_messages.RangeAnswer,
                self._deadline,
            )
            self._slot.revision = _revision_in(answer)
        return _Sent(self._slot.next_id(), self._slot.revision)

    async def _send(self, sent: _Sent) -> Outcome | NoAnswer | None:
        """Send it once; None if it certainly did not happen and may be sent again. Raises
        Refused."""
        try:
            limit_s = self._client.share_of(self._deadline)
            answer = await self._client.ask_once(
                etcd_messages.TXN, self._txn(sent), etcd_messages.TxnAnswer, limit_s
            )
        except NoAnswer as error:
            return error
        if answer.succeeded:
            self._slot.revision = answer.header.revision
            return Done(answer.header.revision)
        self._slot.revision = _slot_in(answer)
        if self._slot.revision == sent.slot_revision:
            return Conflict(answer.header.revision)
        return None  # an earlier transaction, given up as unknown, came after all

    def _txn(self, sent: _Sent) -> etcd_messages.Txn:
        conditions = {self._slot.key: sent.slot_revision} | {
            self._key(key): revision for key, revision in self._transaction.conditions.items()
        }
        done = etcd_messages.Put(self._slot.key, sent.request_id + _DONE)
        mark = etcd_messages.Put(self._slot.mark, sent.request_id)
        return etcd_messages.Txn(
            [_unchanged(key, revision) for key, revision in conditions.items()],
            [*map(self._change, self._transaction.changes), etcd_messages.Step(request_put=done)],
            [
                etcd_messages.Step(request_range=etcd_messages.Range(self._slot.key)),
                etcd_messages.Step(request_put=mark),
            ],
        )

    def _change(self, key: str) -> etcd_messages.Step:
        value = self._transaction.changes[key]
        if value is None:
            return etcd_messages.Step(request_delete_range=etcd_messages.Delete(self._key(key)))
        return etcd_messages.Step(
            request_put=etcd_messages.Put(
                self._key(key), value, self._transaction.leases.get(key, 0)
            )
        )

    def _key(self, key: str) -> bytes:
        return self._prefix + key.encode()

    # -- settle ------------------------------------------------------------------------------------

    async def _settle(self, sent: _Sent) -> Outcome | None:
        """Find out what became of it; None if it did not happen and never will."""
        self._slot.revision = None
        never = etcd_messages.Put(self._slot.key, sent.request_id + _NEVER)
        message = etcd_messages.Txn(
            [_unchanged(self._slot.key, sent.slot_revision)],
            [etcd_messages.Step(request_put=never)],
            [etcd_messages.Step(request_range=etcd_messages.Range(self._slot.key))],
        )
        try:
            answer = await self._client.ask(
                etcd_messages.TXN, message, etcd_messages.TxnAnswer, self._deadline
            )
        except (NoAnswer, Refused) as error:
            return Unknown(str(error))
        if answer.succeeded:
            self._slot.revision = answer.header.revision
            return None
        slot = _kv_in(answer)
        if slot is None:
            return None  # etcd was restored from before the slot: what happened since is undone
        if not self._slot.is_of_this_process(slot.value):
            return Unknown("another process uses this one's name, or etcd was restored")
        self._slot.revision = slot.mod_revision
        # Any other value of this process is of an earlier transaction that came first.
        return Done(slot.mod_revision) if slot.value == sent.request_id + _DONE else None


def _unchanged(key: bytes, revision: int) -> etcd_messages.Compare:
    """The condition that a key was last written at this revision; 0 if it must not exist."""
    return etcd_messages.Compare(key, revision, "MOD")


def _kv_in(answer: etcd_messages.TxnAnswer) -> etcd_messages.KeyValue | None:
    """The slot as the first operation of the failed branch found it."""
    found = answer.responses[0].response_range if answer.responses else None
    return found.kvs[0] if found is not None and found.kvs else None


def _slot_in(answer: etcd_messages.TxnAnswer) -> int:
    slot = _kv_in(answer)
    return slot.mod_revision if slot is not None else 0


def _revision_in(answer: etcd_messages.RangeAnswer) -> int:
    return answer.kvs[0].mod_revision if answer.kvs else 0
