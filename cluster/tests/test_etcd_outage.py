"""An outage of etcd is said once, and not for a single member."""

from __future__ import annotations

from structlog.testing import capture_logs

from cluster.coordination.etcd_client import EtcdOutage


def test_it_is_said_once_for_all_watches() -> None:
    outage = EtcdOutage(is_logged=True)
    with capture_logs() as logs:
        for _ in range(5):
            for watch in "abc":
                outage.failed(watch, "no leader")
        for watch in "abca":
            outage.answered(watch)

    assert [line["event"] for line in logs] == ["etcd_away", "etcd_back"]
    assert logs[0]["means"]
    assert logs[0]["action"]


def test_a_failover_to_another_member_is_no_outage() -> None:
    outage = EtcdOutage(is_logged=True)
    with capture_logs() as logs:
        for _ in range(3):
            for watch in "abc":
                outage.failed(watch, "lost")
                outage.answered(watch)

    assert not logs


def test_a_watch_that_ends_is_not_waited_for() -> None:
    outage = EtcdOutage(is_logged=True)
    with capture_logs() as logs:
        for watch in "aabb":
            outage.failed(watch, "no leader")
        outage.ended("a")
        outage.answered("b")

    assert [line["event"] for line in logs] == ["etcd_away", "etcd_back"]


def test_a_process_with_several_clients_says_it_once() -> None:
    outages = [EtcdOutage(is_logged=is_first) for is_first in (True, False, False)]
    with capture_logs() as logs:
        for outage in outages:
            for watch in "aa":
                outage.failed(watch, "no leader")
            outage.answered("a")

    assert [line["event"] for line in logs] == ["etcd_away", "etcd_back"]
