"""EtcdClient over endpoints that answer as a test wants, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import pytest

from cluster.coordination import etcd_messages
from cluster.coordination.etcd_client import Access, Deadline, EtcdClient, Refused, TokenRefused
from cluster.coordination.etcd_lease import EtcdLease
from cluster.coordination.etcd_wire import NoAnswer, Reply
from cluster.tests.virtual_time import virtual

ENDPOINTS = ("a", "b", "c")
Answers = Callable[[str, str], "Reply | float"]


def fields(status: int = 200, **given: Any) -> Reply:
    return Reply(status, json.dumps(given).encode())


def at_term(term: int, cluster: int = 1) -> Reply:
    header = {"cluster_id": str(cluster), "raft_term": str(term), "revision": "7"}
    return fields(header=header)


class ScriptedWire:
    """Answers as `answers(endpoint, path)` says; a number is a time without an answer."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str, float]] = []
        """Endpoint, path and time of each request."""
        self.tokens: list[str] = []

    async def post(
        self, endpoint: str, path: str, body: bytes, headers: Mapping[str, str], limit_s: float
    ) -> Reply:
        self.asked.append((endpoint, path, asyncio.get_running_loop().time()))
        self.tokens.append(headers.get("Authorization", ""))
        answer = self.answers(endpoint, path)
        if isinstance(answer, Reply):
            return answer
        await asyncio.sleep(answer)
        return at_term(1)

    def stream(
        self, endpoint: str, path: str, body: bytes, headers: Mapping[str, str], limit_s: float
    ) -> AsyncGenerator[bytes]:
        raise AssertionError("no stream here")

    async def close(self) -> None:
        pass


async def ask(client: EtcdClient, deadline_s: float = 6.0) -> etcd_messages.RangeAnswer:
    return await client.ask(
        etcd_messages.RANGE,
        etcd_messages.Range(b"k"),
        etcd_messages.RangeAnswer,
        Deadline(deadline_s),
    )


# -- failover --------------------------------------------------------------------------------------


@virtual
async def test_all_tries_draw_from_one_deadline() -> None:
    wire = ScriptedWire(lambda endpoint, path: 1000.0)
    client = EtcdClient(Access(ENDPOINTS), wire)

    with pytest.raises(NoAnswer):
        await ask(client, 6.0)

    assert [(endpoint, at_s) for endpoint, _, at_s in wire.asked] == [
        ("a", 0.0),
        ("b", 2.0),
        ("c", 4.0),
    ]
    assert asyncio.get_running_loop().time() == 6.0


@virtual
async def test_a_last_try_without_time_does_not_hide_the_reason() -> None:
    def answers(endpoint: str, path: str) -> float:
        if asyncio.get_running_loop().time() < 5:
            raise NoAnswer("it does not speak TLS", was_sent=False)
        return 1000.0

    client = EtcdClient(Access(("a",)), ScriptedWire(answers))

    with pytest.raises(NoAnswer, match="it does not speak TLS"):
        await ask(client, 6.0)


@virtual
async def test_the_endpoint_that_answered_is_asked_again_one_that_failed_comes_last() -> None:
    wire = ScriptedWire(lambda endpoint, path: at_term(1) if endpoint == "b" else 1000.0)
    client = EtcdClient(Access(ENDPOINTS), wire)

    for _ in range(3):
        await ask(client)

    assert [endpoint for endpoint, _, _ in wire.asked] == ["a", "b", "b", "b"]


@virtual
async def test_a_member_that_has_not_heard_of_an_election_is_not_believed() -> None:
    terms = {"a": 5, "b": 4, "c": 5}
    wire = ScriptedWire(lambda endpoint, path: at_term(terms[endpoint]))
    client = EtcdClient(Access(ENDPOINTS), wire)
    await ask(client)
    terms["a"] = 4

    answer = await ask(client)

    assert [endpoint for endpoint, _, _ in wire.asked] == ["a", "a", "b", "c"]
    assert answer.header.raft_term == 5
    assert client.history == 0


@virtual
async def test_an_etcd_whose_members_are_all_behind_was_restored() -> None:
    term = 5
    wire = ScriptedWire(lambda endpoint, path: at_term(term))
    client = EtcdClient(Access(ENDPOINTS), wire)
    await ask(client)
    term = 2

    answer = await ask(client)

    assert answer.header.raft_term == 2
    assert client.history == 1


@virtual
async def test_an_etcd_with_another_id_is_another_one() -> None:
    cluster = 1
    wire = ScriptedWire(lambda endpoint, path: at_term(3 - cluster, cluster))
    client = EtcdClient(Access(ENDPOINTS), wire)
    await ask(client)
    cluster = 2

    await ask(client)

    assert client.history == 1
    assert len(wire.asked) == 2


# -- errors ----------------------------------------------------------------------------------------

DEFINITE = [
    (400, 3, "etcdserver: too many operations in txn request"),
    (404, 5, "etcdserver: requested lease not found"),
    (403, 7, "etcdserver: permission denied"),
    (429, 8, "etcdserver: mvcc: database space exceeded"),
    (400, 11, "etcdserver: mvcc: required revision has been compacted"),
]
UNKNOWN = [
    (503, 14, "etcdserver: request timed out"),
    (503, 14, "etcdserver: request timed out, possibly due to previous leader failure"),
    (500, 2, "etcdserver: leader changed"),
    (500, 13, "internal"),
    (504, 4, "context deadline exceeded"),
]


@pytest.mark.parametrize("case", DEFINITE)
@pytest.mark.parametrize("text", ["message", "error"])
def test_an_error_that_changes_nothing_is_a_refusal(case: tuple[int, int, str], text: str) -> None:
    @virtual
    async def refused() -> None:
        status, code, message = case
        wire = ScriptedWire(lambda endpoint, path: fields(status, code=code, **{text: message}))

        with pytest.raises(Refused) as raised:
            await ask(EtcdClient(Access(ENDPOINTS), wire))

        assert (raised.value.code, str(raised.value)) == (code, message)
        assert len(wire.asked) == 1

    refused()


@pytest.mark.parametrize("case", UNKNOWN)
def test_any_other_error_may_have_changed_something(case: tuple[int, int, str]) -> None:
    @virtual
    async def unknown() -> None:
        status, code, message = case
        wire = ScriptedWire(lambda endpoint, path: fields(status, code=code, message=message))
        client = EtcdClient(Access(ENDPOINTS), wire)

        with pytest.raises(NoAnswer) as raised:
            await client.ask_once(
                etcd_messages.RANGE, etcd_messages.Range(b"k"), etcd_messages.RangeAnswer, 1.0
            )

        assert raised.value.was_sent

    unknown()


@virtual
async def test_a_member_without_a_leader_refuses_before_anything_happens() -> None:
    text = "etcdserver: no leader"
    wire = ScriptedWire(lambda endpoint, path: fields(503, code=14, message=text))
    client = EtcdClient(Access(ENDPOINTS), wire)

    with pytest.raises(NoAnswer) as raised:
        await client.ask_once(
            etcd_messages.RANGE, etcd_messages.Range(b"k"), etcd_messages.RangeAnswer, 1.0
        )

    assert not raised.value.was_sent


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"kvs": 1}', b"404 page not found"])
@pytest.mark.parametrize("status", [200, 404, 502])
def test_rubbish_is_no_answer(body: bytes, status: int) -> None:
    @virtual
    async def rubbish() -> None:
        client = EtcdClient(Access(("a",)), ScriptedWire(lambda e, p: Reply(status, body)))

        with pytest.raises(NoAnswer):
            await client.ask_once(
                etcd_messages.RANGE, etcd_messages.Range(b"k"), etcd_messages.RangeAnswer, 1.0
            )

    rubbish()


# -- tokens ----------------------------------------------------------------------------------------


@virtual
async def test_a_token_that_ended_is_replaced_once() -> None:
    valid = 1
    issued = 0

    def answers(endpoint: str, path: str) -> Reply:
        nonlocal issued
        if path == etcd_messages.AUTHENTICATE:
            issued += 1
            return fields(token=f"token-{issued}")
        if issued < valid:
            return fields(401, code=16, message="etcdserver: invalid auth token")
        return at_term(1)

    wire = ScriptedWire(answers)
    client = EtcdClient(Access(ENDPOINTS, "user", "secret"), wire)
    await ask(client)
    await ask(client)
    valid = 2
    await ask(client)

    assert wire.tokens == ["", "token-1", "token-1", "token-1", "", "token-2"]
    valid = 4
    with pytest.raises(TokenRefused):
        await ask(client)


# -- renewals --------------------------------------------------------------------------------------


def renewed(ttl_s: int) -> Reply:
    header = {"cluster_id": "1", "raft_term": "1"}
    result = {"header": header, "ID": "9"} | ({"TTL": str(ttl_s)} if ttl_s else {})
    return fields(result=result)


class Holder:
    """Holds a lease of 9 s, granted at 0 s."""

    def __init__(self, answers: Answers) -> None:
        self.wire = ScriptedWire(answers)
        self.asleep_s = 0.0
        """Time for which the machine slept."""
        self.gone_at_s: list[float] = []
        self._loop = asyncio.get_running_loop()
        client = EtcdClient(Access(ENDPOINTS), self.wire)
        self.lease = EtcdLease(client, 9, self._monotonic_s, self._gone)
        self.lease.granted(0.0, 9, asyncio.create_task)

    def _monotonic_s(self) -> float:
        return self._loop.time() + self.asleep_s

    def _gone(self) -> None:
        self.gone_at_s.append(self._loop.time())

    def renewals(self) -> list[tuple[str, float]]:
        return [
            (endpoint, round(at_s, 3))
            for endpoint, path, at_s in self.wire.asked
            if path == etcd_messages.RENEW
        ]


@virtual
async def test_a_lease_is_renewed_each_third_of_its_time() -> None:
    holder = Holder(lambda endpoint, path: renewed(9))

    await asyncio.sleep(10)

    assert holder.renewals() == [("a", 3), ("a", 6), ("a", 9)]
    assert holder.lease.held_until_s == 18
    assert holder.lease.is_held()
    holder.lease.stop()


@virtual
async def test_a_renewal_that_stalls_is_sent_to_another_endpoint() -> None:
    holder = Holder(lambda endpoint, path: 1000.0 if endpoint == "a" else renewed(9))

    await asyncio.sleep(7)

    assert holder.renewals() == [("a", 3), ("b", 6)]
    assert holder.lease.held_until_s == 15, "counted from before it was sent"
    holder.lease.stop()


@virtual
async def test_a_holder_whose_renewals_fail_stops_at_its_own_deadline() -> None:
    holder = Holder(lambda endpoint, path: 1000.0)

    await asyncio.sleep(8.999)
    assert holder.lease.is_held()
    await asyncio.sleep(0.001)

    assert not holder.lease.is_held()
    await asyncio.sleep(100)
    assert not holder.lease.is_held()
    assert not holder.gone_at_s, "etcd may have it still"
    holder.lease.stop()


@virtual
async def test_an_answer_without_a_time_to_live_means_that_the_lease_is_lost() -> None:
    holder = Holder(lambda endpoint, path: renewed(0))

    await asyncio.sleep(3.5)

    assert [round(at_s, 3) for at_s in holder.gone_at_s] == [3]
    assert not holder.lease.is_held()


@virtual
async def test_an_error_is_no_loss_of_the_lease() -> None:
    unknown = fields(500, code=2, message="etcdserver: leader changed")
    holder = Holder(lambda endpoint, path: unknown if endpoint == "a" else renewed(9))

    await asyncio.sleep(4)

    assert [endpoint for endpoint, _ in holder.renewals()] == ["a", "b"]
    assert not holder.gone_at_s
    holder.lease.stop()


@virtual
async def test_a_machine_that_slept_does_not_hold_its_lease() -> None:
    holder = Holder(lambda endpoint, path: renewed(9))
    await asyncio.sleep(4)
    holder.asleep_s = 60.0

    assert not holder.lease.is_held()
    await asyncio.sleep(3)
    assert not holder.lease.is_held(), "a renewal does not bring it back"
    holder.lease.stop()


# -- messages --------------------------------------------------------------------------------------


def test_large_numbers_are_texts_and_zeros_are_missing() -> None:
    largest = 2**64 - 1
    body = b'{"header":{"cluster_id":"%d","raft_term":"3"},"kvs":[{"key":"aw=="}]}' % largest

    answer = etcd_messages.decode(etcd_messages.RangeAnswer, body)

    assert answer.header == etcd_messages.Header(cluster_id=largest, raft_term=3)
    assert answer.kvs == [etcd_messages.KeyValue(b"k")]
    assert not answer.more
    assert (
        etcd_messages.decode(
            etcd_messages.WatchAnswer, b'{"canceled":true,"compact_revision":"9"}'
        ).compact_revision
        == 9
    )
    with pytest.raises(etcd_messages.AnswerUnreadable):
        etcd_messages.decode(etcd_messages.RangeAnswer, b'{"kvs":[{"key":"not base 64"}]}')


def test_the_end_of_a_prefix_is_behind_all_its_keys() -> None:
    assert etcd_messages.prefix_end(b"/a/") == b"/a0"
    assert etcd_messages.prefix_end(b"/a/") > b"/a/\xff\xff"
