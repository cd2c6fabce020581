"""The operators' API: archived messages are searched, shown, and sent again as copies."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sqs_api.admin.routes import BROWSE_MESSAGES, READ_BODIES, REDRIVE_MESSAGES
from sqs_api.settings.config import AuthMode
from sqs_api.tests.archived import BEGUN, archived, search_here, write_table
from sqs_api.tests.commands import run
from sqs_api.tests.operator_client import Operators, add_user, keys_of
from sqs_api.tests.served import Served, serving
from storage.lake.table import Lake
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.operations import SendMessage

MESSAGES = 12


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Twelve messages of q, of which the last is sealed, the one before damaged, and the sixth was
    redriven."""
    search_here(monkeypatch)
    made = Lake(str(tmp_path / "lake"))
    origin = {"origin_message_id": "first", "origin_sent_at": BEGUN, "origin_receive_count": 4}
    rows = [
        archived(position, **origin if position == 6 else {}) for position in range(1, MESSAGES - 1)
    ]
    sealed = archived(MESSAGES, body=None, attributes=None, sealed=b"x", data_key=1)
    write_table(made, [*rows, archived(MESSAGES - 1, checksum=7), sealed])
    return made


@pytest_asyncio.fixture
async def served(data: Path, lake: Lake) -> AsyncIterator[Served]:
    async with serving(data, lake=lake.url) as started:
        yield started


def ids(page: Any) -> list[int]:
    return [int(each["message_id"].removeprefix("id-")) for each in page["messages"]]


# -- search ----------------------------------------------------------------------------------------


async def test_a_deleted_queues_messages_are_found_page_by_page(operators: Operators) -> None:
    found: list[int] = []
    token: str | None = ""
    while token is not None:
        page = await operators.seen("archive/q/messages", limit=5, token=token)
        found += ids(page)
        token = page["next"]

    assert found == list(range(MESSAGES, 0, -1))


_FOUND: list[tuple[dict[str, Any], list[int]]] = [
    ({"json": "n=7"}, [7]),
    ({"attribute": "tenant=t3"}, [3]),
    ({"id": "id-0005"}, [5]),
    ({"id": "first"}, [6]),
    ({"id": "firs"}, []),
    ({"reason": "deleted"}, []),
    ({"until_ms": int(BEGUN.timestamp() * 1000) + 6001, "order": "oldest"}, [1, 2]),
    ({"from_ms": int(BEGUN.timestamp() * 1000) + 36_000}, [12]),
]


async def test_messages_are_searched(operators: Operators) -> None:
    for criteria, expected in _FOUND:
        assert ids(await operators.seen("archive/q/messages", **criteria)) == expected, criteria


async def test_a_message_is_shown_whole(operators: Operators) -> None:
    (found,) = (await operators.seen("archive/q/messages", id="id-0006"))["messages"]
    shown = await operators.seen(f"archive/q/messages/{found['place']}")

    assert (shown["body"], shown["is_readable"], shown["reason"]) == ('{"n": 6}', True, "expired")
    assert shown["attributes"]["raw"] == {"type": "Binary", "binary": "AP8="}
    begun_ms = int(BEGUN.timestamp() * 1000)
    assert shown["sent_at_ms"] == begun_ms + 18_000
    origin = {"message_id": "first", "sent_at_ms": begun_ms, "receive_count": 4}
    assert shown["origin"] == origin
    missing = f"archive/q/messages/{found['place']}0"
    assert (await operators.get(missing)).status == 404


async def test_sealed_and_damaged_messages_say_so(operators: Operators) -> None:
    sealed, damaged, sound = (await operators.seen("archive/q/messages", limit=3))["messages"]

    assert (sealed["is_sealed"], sealed["is_readable"], sealed["body"]) == (True, False, None)
    assert (damaged["is_sealed"], damaged["is_readable"]) == (False, False)
    assert sound["is_readable"]


async def test_a_service_without_a_lake_says_so(data: Path) -> None:
    async with serving(data) as served:
        told = await Operators(served).get("archive/q/messages")

    assert (told.status, "runs without --lake" in told.json["error"]) == (400, True)


def _break(lake: Lake) -> None:
    (log,) = Path(lake.url, "archive", "_delta_log").glob("*0.json")
    log.write_text("{")


@pytest.mark.slow  # a process reads the lake
async def test_a_process_of_its_own_searches(
    data: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    async with serving(data, lake=lake.url) as served:
        page = await Operators(served).seen("archive/q/messages", json="n=7")
        _break(lake)
        told = await Operators(served).get("archive/q/messages")

    assert ids(page) == [7]
    assert (told.status, told.json["code"]) == (503, "ServiceUnavailable")


# -- replay ----------------------------------------------------------------------------------------


async def test_a_plan_counts_and_sends_nothing(operators: Operators) -> None:
    await operators.served.call("CreateQueue", QueueName="q")
    await operators.served.call(
        "CreateQueue", QueueName="small", Attributes={"MaximumMessageSize": "1024"}
    )

    plan = await operators.done("archive/q/replays/plan", {"filter": {}, "to": "small"})

    counts = {name: plan[name] for name in ("messages", "bytes", "sealed", "damaged", "too_large")}
    assert counts == {"messages": 10, "bytes": 100, "sealed": 1, "damaged": 1, "too_large": 0}
    assert await operators.served.count("small") == 0


async def test_copies_are_sent_in_the_order_of_sending(operators: Operators) -> None:
    await operators.served.call(
        "CreateQueue", QueueName="again.fifo", Attributes={"FifoQueue": "true"}
    )
    wanted = {"filter": {}, "to": "again.fifo"}

    step = await operators.done("archive/q/replays", wanted)
    again = await operators.done("archive/q/replays", wanted)

    assert [each["original_id"] for each in step["copies"]] == [f"id-{n:04}" for n in range(1, 11)]
    assert [each["reason"][:6] for each in step["left_out"]] == ["Its ch", "It is "]
    assert (step["next"], step["stopped"]) == (None, None)
    assert all(each["is_duplicate"] for each in again["copies"])
    bodies = await operators.served.receive("again.fifo")
    assert list(bodies) == [json.dumps({"n": n}) for n in range(1, 11)]


async def test_a_copy_has_the_attributes_of_its_original(operators: Operators) -> None:
    await operators.served.call("CreateQueue", QueueName="q")
    (found,) = (await operators.seen("archive/q/messages", id="id-0003"))["messages"]

    step = await operators.done("archive/q/replays", {"places": [found["place"]]})

    ((copy,), left_out) = step["copies"], step["left_out"]
    assert (copy["place"], copy["original_id"], left_out) == (found["place"], "id-0003", [])
    (sent,) = (await operators.seen("queues/q/messages"))["messages"]
    assert (sent["message_id"], sent["attributes"]) == (copy["message_id"], found["attributes"])


async def test_a_copy_has_the_trace_header_and_the_group_of_its_original(
    operators: Operators, lake: Lake
) -> None:
    trace = "Root=1-5759e988-bd862e3fe1be46a994272793"
    given = {"queue": "fair", "message_group_id": "tenant-7", "aws_trace_header": trace}
    write_table(lake, [archived(20, **given)])
    await operators.served.call("CreateQueue", QueueName="fair")

    await operators.done("archive/fair/replays", {"filter": {}})

    (sent,) = (await operators.seen("queues/fair/messages"))["messages"]
    assert (sent["group_id"], sent["trace_header"]) == ("tenant-7", trace)


async def test_a_message_left_out_holds_back_its_group_in_later_steps_too(
    operators: Operators, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like the job `replay`; a sealed message holds back none."""
    monkeypatch.setattr("sqs_api.operators.replay_answers.STEP", 2)
    sealed = {"body": None, "attributes": None, "sealed": b"x", "data_key": 1}
    wrong: dict[int, dict[str, Any]] = {20: {"checksum": 7}, 21: sealed}
    rows = [
        archived(n, queue="f.fifo", message_group_id="ab"[n % 2], **wrong.get(n, {}))
        for n in range(20, 26)
    ]
    write_table(lake, rows)
    await operators.served.call("CreateQueue", QueueName="f.fifo", Attributes={"FifoQueue": "true"})
    wanted: dict[str, Any] = {"filter": {}}
    copies, left_out = [], []
    while True:
        step = await operators.done("archive/f.fifo/replays", wanted)
        copies += [each["original_id"] for each in step["copies"]]
        left_out += [(each["original_id"], each["reason"][:9]) for each in step["left_out"]]
        if step["next"] is None:
            break
        wanted["token"] = step["next"]

    assert copies == ["id-0023", "id-0025"]
    assert left_out == [
        ("id-0020", "Its check"),
        ("id-0021", "It is sea"),
        ("id-0022", "An earlie"),
        ("id-0024", "An earlie"),
    ]
    broken = {"filter": {}, "token": "1:0.~.0.0:AAA"}
    assert (await operators.post("archive/f.fifo/replays", broken)).status == 400


async def test_a_step_that_stops_says_where_to_go_on(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    await operators.served.call("CreateQueue", QueueName="q")
    router = operators.served.node.shards.router
    ask, sent = router.ask, []

    async def ask_four(request: Any, age_ms: int = 0) -> Any:
        sent.append(isinstance(request.operation, SendMessage))
        if sent[-1] and sum(sent) > 4:
            raise ServiceUnavailable("no leader")
        return await ask(request, age_ms)

    monkeypatch.setattr(router, "ask", ask_four)
    first = await operators.done("archive/q/replays", {"filter": {}})
    failed = await operators.post("archive/q/replays", {"filter": {}, "token": first["next"]})
    monkeypatch.undo()
    search_here(monkeypatch)
    rest = await operators.done("archive/q/replays", {"filter": {}, "token": first["next"]})

    assert (len(first["copies"]), first["stopped"], failed.status) == (4, "no leader", 503)
    assert rest["copies"][0]["original_id"] == "id-0005"
    assert await operators.served.count() == 10


async def test_a_replay_takes_nothing_that_was_sent_after_its_first_step(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it could replay its own copies, which consumers delete into the archive."""
    await operators.served.call("CreateQueue", QueueName="q")
    monkeypatch.setattr("sqs_api.operators.replay_answers.STEP", 4)
    step = await operators.done("archive/q/replays", {"filter": {}})
    begun, _, place = step["next"].partition(":")
    assert len(step["copies"]) == 4

    earlier = {"filter": {}, "token": f"1:{place}"}
    assert (await operators.done("archive/q/replays", earlier))["copies"] == []
    wrong = await operators.post("archive/q/replays", {"filter": {}, "token": place})
    assert wrong.status == 400
    assert int(begun) > 1_700_000_000_000


@pytest.mark.parametrize("end", [{"until_ms": 253_402_300_799_999}, {"older_s": 0}])
async def test_an_end_in_the_future_is_that_of_the_first_step(
    operators: Operators, end: dict[str, int]
) -> None:
    """All of `lake` was sent after the first step, which a token dates back to 1970."""
    await operators.served.call("CreateQueue", QueueName="q")
    first = "0:0.~.0.0"

    step = await operators.done("archive/q/replays", {"filter": end, "token": first})

    assert (step["copies"], step["left_out"]) == ([], [])


_WRONG_REPLAYS: list[dict[str, Any]] = [
    {},
    {"filter": {}, "places": ["1.a.0.1"]},
    {"places": ["x"]},
    {"filter": {"x": 1}},
]


async def test_wrong_replays_are_refused(operators: Operators) -> None:
    await operators.served.call("CreateQueue", QueueName="q")
    for content in _WRONG_REPLAYS:
        assert (await operators.post("archive/q/replays", content)).status == 400, content


async def test_a_queue_that_is_gone_gets_no_copies(operators: Operators) -> None:
    assert (await operators.post("archive/q/replays", {"filter": {}})).status == 404


# -- who may, and what is noted --------------------------------------------------------------------


async def test_a_viewer_sees_no_bodies_and_replays_nothing(data: Path, lake: Lake) -> None:
    run("credentials", "--data", data, "add")
    viewer = add_user(data, "viewer", BROWSE_MESSAGES)
    mover = add_user(data, "mover", REDRIVE_MESSAGES)
    async with serving(data, auth=AuthMode.SIGV4, lake=lake.url) as served:
        operators = Operators(served, viewer)
        page = await operators.seen("archive/q/messages", id="id-0003")
        refused = [
            await operators.get("archive/q/messages", text="n"),
            await operators.post("archive/q/replays", {"filter": {}}),
            await Operators(served, mover).post("archive/q/replays", {"filter": {}}),
        ]

    (shown,) = page["messages"]
    assert (shown["body"], shown["is_masked"]) == (None, True)
    assert shown["attributes"]["tenant"] == {"type": "String"}
    errors = [(told.status, told.json["error"].partition(" on resource")[0]) for told in refused]
    assert [status for status, _ in errors] == [403, 403, 403]
    wanted = (READ_BODIES, REDRIVE_MESSAGES, "sqs:SendMessage")
    for action, (_, error) in zip(wanted, errors, strict=True):
        assert action.lower() in error.lower()


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_what_a_key_of_the_archive_may_have_sealed_needs_that_key(
    data: Path, lake: Lake, is_deleted: bool
) -> None:
    """The queue has no key, but its messages may have had one: by their source, or formerly."""
    run("keys", "--data", data, "add", "orders")
    actions = (BROWSE_MESSAGES, READ_BODIES, REDRIVE_MESSAGES, "sqs:SendMessage")
    without, having = add_user(data, "u", *actions), add_user(data, "k", *actions, "kms:Decrypt")
    root = keys_of(run("credentials", "--data", data, "add"))
    async with serving(data, lake=lake.url) as served:
        for name in ["to"] if is_deleted else ["to", "q"]:
            await served.call("CreateQueue", QueueName=name)
    wanted = {"filter": {"id": "id-0003"}, "to": "to"}
    async with serving(
        data, auth=AuthMode.SIGV4, lake=lake.url, archive_keys="alias/orders"
    ) as served:
        stranger = Operators(served, without)
        (masked,) = (await stranger.seen("archive/q/messages", id="id-0003"))["messages"]
        alone = await stranger.seen(f"archive/q/messages/{masked['place']}")
        refused = [
            await stranger.get("archive/q/messages", text="n"),
            await stranger.post("archive/q/replays", wanted),
            await stranger.post("archive/q/replays/plan", wanted),
        ]
        readers = [Operators(served, having), Operators(served, root)]
        shown = [await each.seen("archive/q/messages", id="id-0003") for each in readers]
        copied = await readers[0].done("archive/q/replays", wanted)

    for message in (masked, alone):
        assert (message["body"], message["is_masked"]) == (None, True)
    assert [told.status for told in refused] == [403, 403, 403]
    assert [page["messages"][0]["body"] for page in shown] == ['{"n": 3}'] * 2
    assert len(copied["copies"]) == 1


async def test_reads_and_copies_are_in_the_audit_log(data: Path, lake: Lake) -> None:
    async with serving(data, lake=lake.url) as served:
        operators = Operators(served)
        await served.call("CreateQueue", QueueName="q")
        await operators.seen("archive/q/messages", id="id-0003")
        step = await operators.done("archive/q/replays", {"filter": {"id": "id-0003"}})

    # It is whole once the service has stopped.
    lines = [json.loads(line) for line in (data / "audit.log").read_text().splitlines()]
    read, replayed = [line for line in lines if line["event"].startswith("holdfast:")]
    assert (read["event"], read["messages_read"], read["archived"]) == (
        READ_BODIES,
        ["id-0003"],
        True,
    )
    assert replayed["event"] == "holdfast:ReplayArchive"
    assert replayed["search"] == {"id": "id-0003"}
    assert replayed["copies"] == {"id-0003": step["copies"][0]["message_id"]}
    assert replayed["to"].endswith(":q")
