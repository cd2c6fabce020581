"""`holdfast cluster certificates`."""

from __future__ import annotations

from pathlib import Path

import pytest

from sqs_api.tests.commands import run


def test_made_files_are_those_that_a_member_needs(tmp_path: Path) -> None:
    said = run("cluster", "certificates", "--hosts", "a,b", "--out", tmp_path / "made")

    assert (said.status, said.err) == (0, "")
    assert [line.split(":")[0] for line in said.out.splitlines()] == ["a", "b"]
    made = tmp_path / "made" / "a"
    given = {
        "etcd": "http://127.0.0.1:2379",
        "host_name": "a",
        "peer_address": "127.0.0.1:9325",
        "peer_ca": made / "ca.pem",
        "peer_certificate": made / "peer.pem",
        "peer_key": made / "peer.key",
        "master_key_file": "master.key",
    }
    file = tmp_path / "c.toml"
    file.write_text("".join(f'{name} = "{value}"\n' for name, value in given.items()))
    checked = run("check-config", "--config", file)
    assert (checked.status, checked.err) == (0, "")


@pytest.mark.parametrize("hosts", ["", "a,,b", "A", "a,a", "../a"])
def test_hosts_are_named_as_certificates_can(tmp_path: Path, hosts: str) -> None:
    said = run("cluster", "certificates", "--hosts", hosts, "--out", tmp_path / "made")

    assert said.status == 2
    assert "names" in said.err
    assert not (tmp_path / "made").exists()
