"""A folder in use names the process that has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from storage.engines.in_use import refuse_if_in_use
from storage.files.folder import FolderRefused

_HOLD = """
import fcntl, socket, sys
lock = open(sys.argv[1], "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
listening = [socket.create_server((host, 0), family=family)
             for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6))[: int(sys.argv[2])]]
print(*(each.getsockname()[1] for each in listening), flush=True)
sys.stdin.read()
"""  # noqa: E501


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not tell")
@pytest.mark.parametrize("sockets", [0, 1, 2])
def test_a_folder_in_use_names_the_process_and_where_it_listens(
    tmp_path: Path, sockets: int
) -> None:
    shard = tmp_path / "shard-0"
    shard.mkdir()
    arguments = [sys.executable, "-c", _HOLD, str(shard / "LOCK"), str(sockets)]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        ports = holder.stdout.readline().split()
        if len(ports) < sockets:
            pytest.skip("no IPv6 here")
        hosts = ("127.0.0.1", "[::1]")
        addresses = [f"{host}:{port}" for host, port in zip(hosts, ports, strict=False)]
        where = f", which listens on {' and '.join(addresses)}" if addresses else ""

        with pytest.raises(FolderRefused) as caught:
            refuse_if_in_use(tmp_path, [shard])

        assert str(caught.value) == (
            f"data folder {tmp_path} is in use by process {holder.pid}{where}"
        )
        holder.communicate("")
    refuse_if_in_use(tmp_path, [shard])


def test_a_folder_that_nobody_uses_passes(tmp_path: Path) -> None:
    shard = tmp_path / "shard-0"
    refuse_if_in_use(tmp_path, [shard])
    shard.mkdir()
    (shard / "LOCK").touch()

    refuse_if_in_use(tmp_path, [shard])
