"""`holdfast credentials` beside a running service, and the command line's answer to wrong use."""

from __future__ import annotations

import re
from collections.abc import Callable

from compat_tests.clients.raw import RawClient
from compat_tests.facade import Credentials, eventually
from compat_tests.node_process import NodeProcess, run_command

_EXPORT = re.compile(r"export (AWS_\w+)=(\S+)")


def credentials_command(node: NodeProcess, verb: str, *arguments: str) -> str:
    """Run `holdfast credentials` on the service's data folder; returns its output."""
    done = run_command("credentials", "--data", str(node.data), verb, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def printed_key(text: str, region: str) -> Credentials:
    exports = dict(_EXPORT.findall(text))
    return Credentials(exports["AWS_ACCESS_KEY_ID"], exports["AWS_SECRET_ACCESS_KEY"], region)


def status(node: NodeProcess, key: Credentials) -> int:
    return RawClient(node.url, key).query("ListQueues").status


def takes_effect(node: NodeProcess, key: Credentials, expected: int) -> Callable[[], bool]:
    return lambda: status(node, key) == expected


def test_added_key_works_and_disabled_key_stops(node: NodeProcess) -> None:
    region = node.credentials.region

    key = printed_key(credentials_command(node, "add"), region)
    eventually(takes_effect(node, key, 200))
    listed = credentials_command(node, "list")
    assert key.access_key_id in listed
    assert key.secret_access_key not in listed

    credentials_command(node, "disable", key.access_key_id)

    eventually(takes_effect(node, key, 403))
    assert status(node, node.credentials) == 200


def test_output_that_a_disk_does_not_take_is_one_line_and_status_3() -> None:
    with open("/dev/full", "w") as full:
        done = run_command("example-config", output=full)

    assert done.returncode == 3
    assert done.stderr == "holdfast: no space on the disk\n"


def test_standard_error_on_a_full_disk_decides_no_exit_status() -> None:
    with open("/dev/full", "w") as full:
        refused = run_command("verify", "/nonexistent", errors=full)
        without_command = run_command(errors=full)
        not_written = run_command("example-config", output=full, errors=full)

    assert refused.returncode == 2
    assert without_command.returncode == 2
    assert not_written.returncode == 3
