"""`holdfast check-config` refuses the same settings as `serve`, and shows the ones it would use."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from cluster.clock import SystemClock
from compat_tests.made_certificates import Authority, Pair
from sqs_api.http.tls import Tls
from sqs_api.node import start_node
from sqs_api.settings.config import Settings, load
from sqs_api.start_refusals import NodeRefused
from sqs_api.tests.commands import Said, run
from sqs_api.tests.served import filled, serving


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Authority(tmp_path).sign("server")


async def _refusal(settings: Settings) -> str:
    with pytest.raises(NodeRefused) as refused:
        await start_node(settings)
    return str(refused.value)


def _checked(folder: Path, **given: Path) -> Said:
    file = folder / "c.toml"
    file.write_text("".join(f'{name} = "{path}"\n' for name, path in given.items()))
    return run("check-config", "--config", file)


@pytest.mark.parametrize("wrong", ["certificate", "key", "client_ca"])
async def test_files_for_tls_are_refused_as_by_serve(
    tmp_path: Path, pair: Pair, wrong: str
) -> None:
    given = {"tls_certificate": pair.certificate, "tls_key": pair.key}
    given[f"tls_{wrong}"] = {
        "certificate": pair.key,
        "key": Path("/nonexistent"),
        "client_ca": Path("/nonexistent"),
    }[wrong]

    said = _checked(tmp_path, **given)

    assert (said.status, said.out) == (2, "")
    settings = Settings(port=0, data=tmp_path / "data", **given)  # type: ignore[arg-type]
    assert said.err == await _refusal(settings)


async def test_a_lake_that_is_a_file_is_refused_as_by_serve(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.touch()

    said = _checked(tmp_path, lake=lake)

    file = tmp_path / "c.toml"
    assert said == Said(2, "", f"{file}:1: lake: {lake} is a file, not a folder")
    settings = Settings(port=0, data=tmp_path / "data", lake=str(lake))
    assert said.err == f"{file}:1: {await _refusal(settings)}"


MISSING_TARGET = """
port = 9324

[[queues]]
name = "a"

[[queues]]
name = "orders"
dead_letter_queue = "orders-dead"
"""


async def test_a_missing_dead_letter_queue_is_refused_as_by_serve(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(MISSING_TARGET)
    settings = load({"port": 0, "data": tmp_path / "data"}, file)

    said = run("check-config", "--config", file)

    assert (said.status, said.out) == (2, "")
    assert "Dead letter target does not exist." in said.err
    assert said.err == f"{file}:7: queues.1: {await _refusal(settings)}"


async def test_declared_queues_are_checked_beside_those_of_the_folder(tmp_path: Path) -> None:
    file, data = tmp_path / "c.toml", tmp_path / "data"
    file.write_text(f'data = "{data}"\n{MISSING_TARGET}')
    more = '[[queues]]\nname = "later"\ndead_letter_queue = "nowhere"\n'
    async with serving(data) as served:
        await served.call("CreateQueue", QueueName="orders-dead")
        await served.call("CreateQueue", QueueName="orders")
        beside = await asyncio.to_thread(run, "check-config", "--config", file)
    files = sorted(data.iterdir())
    alone = run("check-config", "--config", file)
    file.write_text(f'data = "{data}"\n{MISSING_TARGET}\n{more}')
    refused = run("check-config", "--config", file)

    assert (beside.status, alone.status) == (0, 0)
    assert sorted(data.iterdir()) == files
    assert refused.err.startswith(f"{file}:12: queues.2: queue later: ")


def test_a_folder_whose_queues_cannot_be_read_is_said(tmp_path: Path) -> None:
    file, data = tmp_path / "c.toml", filled(tmp_path / "data")
    file.write_text(f'data = "{data}"\n{MISSING_TARGET}')
    (data / "records.sqlite").write_bytes(b"damaged")

    said = run("check-config", "--config", file)

    assert said.status == 0
    assert said.err.startswith("holdfast: the declared queues are not checked: ")


def test_a_lake_is_not_made(tmp_path: Path) -> None:
    said = _checked(tmp_path, lake=tmp_path / "lake")

    assert (said.status, said.err) == (0, "")
    assert not (tmp_path / "lake").exists()


def test_an_expired_certificate_is_reported(
    tmp_path: Path, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_s = Tls(*pair, None).expires_at_s
    given = {"tls_certificate": pair.certificate, "tls_key": pair.key}

    assert _checked(tmp_path, **given).err == ""
    monkeypatch.setattr("cluster.clock.SystemClock", partial(SystemClock, wall=lambda: at_s))
    said = _checked(tmp_path, **given)

    expired = datetime.fromtimestamp(at_s, UTC).isoformat()
    assert said.err == f"holdfast: {pair.certificate} expired at {expired}\n"
    assert (said.status, f"tls_key = {pair.key}" in said.out) == (0, True)


def test_reserve_that_the_log_needs_is_refused_alike(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f'data = "{tmp_path / "data"}"\ndisk_reserve_mib = 5\nshards = 3\n')

    checked, served = run("check-config", "--config", file), run("serve", "--config", file)

    assert (checked.status, served.status) == (2, 1)
    assert "disk_reserve_mib: must be at least 48 with shards = 3" in checked.err
    assert checked.err == served.err
