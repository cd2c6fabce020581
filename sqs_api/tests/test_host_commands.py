"""`holdfast cluster remove` and `wait` end when nothing is missing, and tell what they wait for."""

from __future__ import annotations

from typing import Any

import click
import pytest

from sqs_api.commands import hosts
from sqs_api.commands.page_client import AdminRefused, NoAnswer
from sqs_api.tests.commands import Said, run

LEFT = (
    "holdfast: host b still counts; the cluster goes on with it: `holdfast cluster remove b` waits "
    "for the rest"
)
STILL = "host b, removed, still counts; its leader, host a, goes on"


def _copy(host: str, role: str = "follower", **changes: object) -> dict[str, Any]:
    sound = {"is_voter": True, "damage": "", "conflict": "", "needs_checkpoint": False}
    return {"host": host, "role": role} | sound | changes


def _status(*copies: dict[str, Any], change: str = "", reached: bool = True) -> dict[str, Any]:
    shard = {"shard": 0, "change": change, "replicas": [_copy("a", "leader"), *copies]}
    return {"hosts": [{"name": "d", "is_reached": reached}], "shards": [shard]}


LEADERLESS = {**_status(), "shards": [{"shard": 0, "change": "", "replicas": [_copy("a")]}]}


class _Service:
    """Answers with one status after the other, and is interrupted behind the last one."""

    def __init__(self, *statuses: dict[str, Any] | Exception) -> None:
        self.statuses = list(statuses)
        self.removed: list[str] = []

    def remove_host(self, host: str) -> None:
        self.removed.append(host)

    def cluster(self) -> dict[str, Any]:
        status = self.statuses.pop(0)
        if isinstance(status, Exception):
            raise status
        return status

    def sleep(self, seconds: float) -> None:
        if not self.statuses:
            raise KeyboardInterrupt


def _served(patch: pytest.MonkeyPatch, *statuses: dict[str, Any] | Exception) -> _Service:
    service = _Service(*statuses)
    patch.setattr(hosts, "admin_client", lambda url, data: service)
    patch.setattr("time.sleep", service.sleep)
    return service


def test_a_removal_ends_with_the_change_of_all_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    away = NoAnswer("cannot ask http://x")
    seen = (_status(change=STILL), _status(change=STILL), away, LEADERLESS, _status())
    service = _served(monkeypatch, *seen)

    assert run("cluster", "remove", "b") == Said(
        0,
        f"waits: shard 0: {STILL}\n"
        "waits: cannot ask http://x\n"
        "waits: shard 0: it has no leader that is reached\n"
        "host b is removed\n",
        "",
    )
    assert service.removed == ["b"]
    assert service.statuses == []


def test_a_removal_that_is_interrupted_says_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    _served(monkeypatch, _status(change=STILL))
    monkeypatch.setattr(click, "echo", lambda line, err=False: said.append(line))

    with pytest.raises(click.Abort):
        run("cluster", "remove", "b")
    assert said == [f"waits: shard 0: {STILL}", LEFT]


def test_a_removal_that_takes_too_long_has_a_status_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _served(monkeypatch, _status(change=STILL), _status(change=STILL))

    said = run("cluster", "remove", "b", "--timeout", "0s")

    assert said == Said(
        4,
        f"waits: shard 0: {STILL}\n",
        f"{LEFT}\n",
    )


def test_a_wait_that_may_not_be_asked_for_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    _served(monkeypatch, AdminRefused("http://x: 403 no"))

    assert run("cluster", "wait", "d") == Said(2, "", "http://x: 403 no")


def test_a_host_is_waited_for_until_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    _served(
        monkeypatch,
        {**_status(), "hosts": []},
        _status(reached=False),
        _status(),
        _status(_copy("d", needs_checkpoint=True)),
        _status(_copy("d", damage="row 7")),
        _status(_copy("d", is_voter=False)),
        _status(_copy("d"), change="the voters before still count; its leader, host a, goes on"),
        _status(_copy("d")),
    )

    assert run("cluster", "wait", "d").out.splitlines() == [
        "waits: host d is no member",
        "waits: host d is not reached",
        "waits: shard 0: its copy is not there yet",
        "waits: shard 0: its copy fetches a checkpoint",
        "waits: shard 0: its copy is damaged and fetches sound rows",
        "waits: shard 0: its copy does not count yet",
        "waits: shard 0: the voters before still count; its leader, host a, goes on",
        "host d counts in all shards",
    ]
