"""The operators' API: a change that is sent more than once is made once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from auth.signing import signed_headers
from cluster.clock import SystemClock
from sqs_api.admin.remembered import (
    BYTES_MAX,
    CALLER_BYTES_MAX,
    KEPT_S,
    KEYS_MAX,
    UNDER_WAY_MAX,
    IdempotencyKeyReused,
    OutcomeUnknown,
    RememberedAnswers,
    Repeatable,
    Said,
)
from sqs_api.settings.config import AuthMode
from sqs_api.tests.commands import run
from sqs_api.tests.operator_client import JSON, Operators, Told, User, add_users, keys_of
from sqs_api.tests.served import page_request, serving
from visibility.contract.errors import RequestThrottled

MESSAGES = "queues/q/messages"
SENDS = User(("sqs:SendMessage",))
DONE = Said(200, b"{}")


async def send(operators: Operators, key: str, body: str = "a", **more: str) -> Told:
    headers = {**JSON, "idempotency-key": key, **more}
    return await operators.post(MESSAGES, {"body": body}, headers)


# -- the API ---------------------------------------------------------------------------------------


async def test_three_requests_with_one_key_send_one_message(data: Path) -> None:
    async with serving(data) as served:
        await served.call("CreateQueue", QueueName="q")
        operators = Operators(served)
        together = await asyncio.gather(*(send(operators, "k") for _ in range(3)))
        later = await send(operators, "k")
        messages = await served.count()

    assert [told.status for told in together] == [200, 200, 200]
    assert [told.json for told in together] == [later.json] * 3
    assert messages == 1


async def test_a_change_goes_on_when_its_client_hangs_up(data: Path) -> None:
    async with serving(data) as served:
        await served.call("CreateQueue", QueueName="q")
        host, port = served.address.removeprefix("http://").split(":")
        sent = {"host": "localhost:9324", **JSON, "idempotency-key": "k"}
        for _ in range(3):
            _, writer = await asyncio.open_connection(host, int(port))
            body = b'{"body": "a"}'
            writer.write(page_request("POST", f"/_holdfast/api/{MESSAGES}", sent, body))
            await writer.drain()
            writer.transport.abort()
        told = await send(Operators(served), "k")
        messages = await served.count()

    assert told.status == 200
    assert messages == 1


async def test_a_key_of_another_request_is_refused(data: Path) -> None:
    async with serving(data) as served:
        await served.call("CreateQueue", QueueName="q")
        operators = Operators(served)
        await send(operators, "k")
        other = await send(operators, "k", "b")
        headers = {**JSON, "idempotency-key": "k"}
        elsewhere = await operators.post("queues/q/purge", {"confirm": "q"}, headers)
        wrong = await send(operators, "k k")
        age = await send(operators, "k", **{"idempotency-age": "-1"})
        messages = await served.count()

    told = [(each.status, each.json["code"]) for each in (other, elsewhere, wrong, age)]
    mismatch, invalid = (400, "IdempotentParameterMismatch"), (400, "InvalidParameterValue")
    assert told == [mismatch, mismatch, invalid, invalid]
    assert messages == 1


async def test_a_key_is_that_of_its_caller(data: Path) -> None:
    async with serving(data) as served:
        await served.call("CreateQueue", QueueName="q")
    keys = add_users(data, {"ann": SENDS, "bob": SENDS})
    async with serving(data, auth=AuthMode.SIGV4) as served:
        by_ann = await send(Operators(served, keys["ann"]), "k")
        by_bob = await send(Operators(served, keys["bob"]), "k")

    assert by_ann.status == by_bob.status == 200
    assert by_ann.json != by_bob.json


async def test_a_refusal_is_not_remembered(data: Path) -> None:
    async with serving(data) as served:
        operators = Operators(served)
        missing = await send(operators, "k")
        await served.call("CreateQueue", QueueName="q")
        sent = await send(operators, "k")

    assert (missing.status, sent.status) == (404, 200)


async def test_the_very_same_request_gets_the_same_answer(data: Path) -> None:
    """As a proxy repeats it: with the same signature."""
    async with serving(data) as served:
        await served.call("CreateQueue", QueueName="q")
    root = keys_of(run("credentials", "--data", data, "add"))
    body, target = b'{"body": "x"}', f"/_holdfast/api/{MESSAGES}"
    sent = {"host": "localhost:9324", **JSON, "idempotency-key": "k"}
    async with serving(data, auth=AuthMode.SIGV4) as served:
        signed = signed_headers(root, "POST", target, sent, body, SystemClock().wall_s())
        request = page_request("POST", target, signed, body)
        first = await served.ask(request)
        again = await served.ask(request)

    assert (first.status, first.body) == (again.status, again.body)
    assert first.status == 200


async def test_a_known_repetition_is_refused_after_a_restart(data: Path) -> None:
    async with serving(data) as served:
        await served.call("CreateQueue", QueueName="q")
        await send(Operators(served), "k")
    async with serving(data) as served:
        operators = Operators(served)
        again = await send(operators, "k", **{"idempotency-age": "60000"})
        messages = await served.count()
        anew = await send(operators, "other")

    assert (again.status, again.json["code"]) == (409, "OutcomeUnknown")
    assert messages == 1
    assert anew.status == 200


# -- the memory ------------------------------------------------------------------------------------


class Memory:
    """A memory at a settable time, and what was decided."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.answers = RememberedAnswers(lambda: self.now_s, age_s_max=KEPT_S)
        self.decided: list[str] = []

    async def ask(
        self,
        key: str,
        said: Said | asyncio.Future[Said] = DONE,
        *,
        caller: str = "ann",
        age_ms: int = 0,
    ) -> Said:
        async def decide() -> Said:
            self.decided.append(key)
            return await said if isinstance(said, asyncio.Future) else said

        return await self.answers.answer(caller, Repeatable(key, age_ms), b"digest", decide)


@pytest.fixture
def memory() -> Memory:
    return Memory()


def future() -> asyncio.Future[Said]:
    return asyncio.get_running_loop().create_future()


async def begun(work: Awaitable[Any]) -> asyncio.Future[Any]:
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_a_repetition_waits_for_the_first_answer(memory: Memory) -> None:
    said = future()
    first = await begun(memory.ask("k", said))
    again = await begun(memory.ask("k"))
    first.cancel()
    await asyncio.sleep(0)
    said.set_result(Said(200, b"first"))

    assert await again == Said(200, b"first")
    assert await memory.ask("k") == Said(200, b"first")
    assert memory.decided == ["k"]


async def test_what_failed_is_decided_again(memory: Memory) -> None:
    said = future()
    first = await begun(memory.ask("k", said))
    again = await begun(memory.ask("k"))
    said.set_exception(ZeroDivisionError())
    outcomes = await asyncio.gather(first, again, return_exceptions=True)

    assert [type(each) for each in outcomes] == [ZeroDivisionError, ZeroDivisionError]
    assert (await memory.ask("k", Said(503, b""))).status == 503
    assert (await memory.ask("k")).status == 200
    assert memory.decided == ["k"] * 3


async def test_answers_are_forgotten_with_time_and_known_repetitions_refused(
    memory: Memory,
) -> None:
    await memory.ask("k")
    memory.now_s += KEPT_S - 1
    assert await memory.ask("k", Said(200, b"anew")) == DONE
    memory.now_s += 61
    with pytest.raises(OutcomeUnknown):
        await memory.ask("k", age_ms=int(KEPT_S + 60) * 1000)
    assert await memory.ask("k", Said(200, b"anew")) == Said(200, b"anew")
    assert await memory.ask("new", age_ms=1000) == DONE


async def test_a_caller_has_bounds_of_its_own(memory: Memory) -> None:
    await memory.ask("k", caller="bob")
    for number in range(KEYS_MAX + 1):
        memory.now_s += 0.01
        await memory.ask(f"k{number}")
    memory.now_s += 1
    with pytest.raises(OutcomeUnknown):
        await memory.ask("k0", age_ms=int((memory.now_s - 1000.01) * 1000) + 1)
    await memory.ask("k1")
    await memory.ask("k", caller="bob", age_ms=1000)
    await memory.ask("never arrived", caller="bob", age_ms=500)

    assert memory.decided.count("k1") == 1
    assert memory.decided.count("k") == 1


async def test_large_answers_are_bounded_for_a_caller_and_in_all(memory: Memory) -> None:
    large = Said(200, b"x" * (CALLER_BYTES_MAX // 4))
    for caller in range(4 * BYTES_MAX // CALLER_BYTES_MAX):
        for number in range(5):
            await memory.ask(f"{caller}-{number}", large, caller=str(caller))
            memory.now_s += 0.001

    assert memory.answers._bytes <= BYTES_MAX
    assert all(each.bytes <= CALLER_BYTES_MAX for each in memory.answers._callers.values())
    assert memory.answers._bytes == sum(each.bytes for each in memory.answers._callers.values())


async def test_requests_under_way_are_bounded(memory: Memory) -> None:
    said = future()
    waiting = [await begun(memory.ask(str(number), said)) for number in range(UNDER_WAY_MAX)]
    with pytest.raises(RequestThrottled):
        await memory.ask("more")
    await memory.ask("more", caller="bob")
    said.set_result(Said(200, b"{}"))
    await asyncio.gather(*waiting)

    assert (await memory.ask("more")).status == 200


async def test_nothing_is_left_of_callers_that_are_gone(memory: Memory) -> None:
    for number in range(10):
        await memory.ask("k", caller=str(number))
    memory.now_s += KEPT_S + 61
    await memory.ask("k", caller="bob")

    assert list(memory.answers._callers) == ["bob"]


async def test_another_digest_is_refused(memory: Memory) -> None:
    await memory.ask("k")
    decide: Callable[[], Awaitable[Said]] = future
    with pytest.raises(IdempotencyKeyReused):
        await memory.answers.answer("ann", Repeatable("k", 0), b"another", decide)
