"""The service whose standard error takes nothing: answers are as with any other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from compat_tests.clients.raw import RawClient
from compat_tests.node_process import NodeProcess, run_command

FULL = Path("/dev/full")
DROPPED = "holdfast_log_lines_dropped_total "


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A service that refuses sends for want of space, and has none for its log."""
    if not FULL.exists():
        pytest.skip("needs Linux's full device")
    node = NodeProcess(tmp_path / "node", "--disk-reserve-mib", "1000000000")
    node.log = FULL
    yield node.start()
    node.close()


@pytest.mark.slow
def test_log_on_a_full_disk_decides_no_answer_and_no_exit_status(
    node: NodeProcess, tmp_path: Path
) -> None:
    raw = RawClient(node.url, node.credentials)

    refused = raw.query("CreateQueue", QueueName="q")
    not_empty = run_command("backup", str(tmp_path), "--data", str(node.data))

    assert (refused.status, refused.value("Code")) == (503, "ServiceUnavailable")
    assert "is not empty" in not_empty.stderr
    with urlopen(f"{node.url}/_holdfast/metrics") as answer:
        metrics = answer.read().decode()
    (dropped,) = [line for line in metrics.splitlines() if line.startswith(DROPPED)]
    assert float(dropped.split()[1]) > 0
    node.stop()
