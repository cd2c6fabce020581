"""Every command and page on a disk that is full, read-only or without inodes: `python -m
compat_tests.faults.full_disks`.

None may end with a traceback, call good data damaged or advise a restore. A command says that the
disk takes no writes and ends with status 3, or does its work without writing. A page answers 503,
or a refusal that a client understands. Afterwards, with space, everything works again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.clients.raw import RawClient
from compat_tests.facade import ClientError, eventually
from compat_tests.faults.run import say, status
from compat_tests.faults.small_disk import SmallDisk, small_disk, why_no_small_disk
from compat_tests.node_process import NodeProcess, run_command
from compat_tests.pages import ask

DISK_REFUSED = 3
_SIZE = "112m"
_SIZE_FOR_DELETES = "80m"
"""Fewer rows fit than the reserve leaves free. RocksDB removes deleted rows by a compaction; after
one met a full disk, the next begins only when as much is free as the files have that it merges."""
_OPTIONS = ("--disk-reserve-mib", "32", "--aws-waits", "off")
_SAID_IF_REFUSED = ("no space on ", "is read-only")
_NEVER_SAID = ("Traceback", "is damaged", "estore a backup", "fast restore", "fast salvage")
_ORDINARY = ("in use by", "lake", "no usage")
"""Refusals that have nothing to do with the disk."""
_SERVES_S, _ENDS_S = 20.0, 120.0
"""A service that runs for so long has started; a command that does has not ended."""

Words = tuple[str, ...]


class State(NamedTuple):
    """A disk that takes no writes."""

    name: str
    set_in: Callable[[SmallDisk], None]
    beside_a_service: bool = True
    """False if it cannot come about while a service has files open."""
    at_once: int = 4
    """Commands that run at the same time; 1 where one would give back what another lacks."""


STATES = (
    State("full", SmallDisk.fill_up),
    State("read-only", SmallDisk.make_read_only, beside_a_service=False),
    State("without inodes", SmallDisk.use_up_inodes, at_once=1),
)


def main() -> int:
    """Run from the command line: exits with 0 if all promises were kept, 1 if not, 77 if it cannot
    run."""
    reason = why_no_small_disk()
    if reason:
        say(f"skipped: {reason}")
        return 77
    broken = refused_until_deleted()
    say(f"full, then emptied: {broken or 'no promise broken'}")
    for state in STATES:
        found = at_rest(state) + (beside_a_service(state) if state.beside_a_service else [])
        say(f"{state.name}: {found or 'no promise broken'}")
        broken += found
    return status(broken)


def at_rest(state: State, words: Words = ()) -> list[str]:
    """Run the commands that have one of these words, all without any, on a folder whose service was
    killed, on such a disk; returns what was wrong."""
    with _service() as (node, disk):
        backup, policy = disk.mounted_at / "backup", disk.mounted_at / "policy.json"
        policy.write_text(_POLICY)
        assert run_command("backup", "--data", str(node.data), str(backup)).returncode == 0
        node.kill()
        state.set_in(disk)
        problems = _problems(state, _with(words, _folder_commands(node.data, backup, policy)))
        problems += _problems(state, _output_commands(), disk.mounted_at / "output")
        disk.free()
        verified = run_command("verify", str(node.data))
        if verified.returncode != 0:
            problems.append(f"verify, once there is space: {verified.stdout}{verified.stderr}")
        node.start()
        return problems + _refusals_of(node)


def refused_until_deleted() -> list[str]:
    """Send until the disk is short, delete all, and send again; returns what was wrong."""
    with _service(_SIZE_FOR_DELETES) as (node, _):
        client = Boto3Client(node.url, node.credentials)
        url = client.call("CreateQueue", QueueName="full")["QueueUrl"]
        try:
            while True:
                client.call("SendMessage", QueueUrl=url, MessageBody="x" * 1_000_000)
        except ClientError as error:
            problems = [] if error.status == 503 else [f"not retriable: {error}"]
        made = run_command("users", "--data", str(node.data), "add", "carol")
        if made.returncode != 0:
            problems.append(f"no space is left for a user: {made.stderr}")
        # A flush takes half of the reserve for a moment, and a queue needs the other half.
        another = partial(client.call, "CreateQueue", QueueName="another")
        problems += _refusals("a queue on a short disk", another)
        while messages := client.call("ReceiveMessage", QueueUrl=url).get("Messages"):
            for message in messages:
                handle = message["ReceiptHandle"]
                client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
        client.close()
        return problems + _refusals_of(node)


def beside_a_service(state: State, words: Words = ()) -> list[str]:
    """The same beside a service on such a disk, whose pages are called, too."""
    with _service() as (node, disk):
        state.set_in(disk)
        commands = _with(words, _service_commands(node, disk.mounted_at))
        # A backup's flush meets the full disk, and then the store answers 503 until there is space.
        backups = [each for each in commands if each[0] == "backup"]
        problems = _problems(state, [each for each in commands if each not in backups])
        problems += _problems(state, backups)
        problems += _page_problems(node) + _action_problems(node)
        disk.free()
        return problems + _refusals_of(node) + _log_problems(node)


@contextmanager
def _service(size: str = _SIZE) -> Iterator[tuple[NodeProcess, SmallDisk]]:
    """A service with a queue, messages, a user and a key on a small disk."""
    with small_disk(size) as (folder, disk):
        node = NodeProcess(folder, *_OPTIONS, data=disk.mounted_at / "data").start()
        data = str(node.data)
        try:
            client = Boto3Client(node.url, node.credentials)
            arn = "arn:aws:sqs:us-east-1:000000000000:doomed"
            redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
            for name, attributes in (("doomed", {}), ("orders", {"RedrivePolicy": redrive})):
                made = client.call("CreateQueue", QueueName=name, Attributes=attributes)
                url = made["QueueUrl"]
                for number in range(3):
                    client.call("SendMessage", QueueUrl=url, MessageBody=str(number))
            client.close()
            assert run_command("users", "--data", data, "add", "alice").returncode == 0
            assert run_command("keys", "--data", data, "add", "key").returncode == 0
            yield node, disk
        finally:
            node.close()


_POLICY = json.dumps(
    {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}
)


# -- commands --------------------------------------------------------------------------------------


def _identity_commands(data: Path) -> list[Words]:
    users = ("users", "--data", str(data))
    keys = ("keys", "--data", str(data))
    credentials = ("credentials", "--data", str(data))
    return [
        (*users, "list"),
        (*users, "show", "alice"),
        (*users, "add", "bob"),
        (*credentials, "list"),
        (*credentials, "add", "--user", "alice"),
        (*credentials, "session"),
        (*keys, "list"),
        (*keys, "add", "another"),
        (*keys, "rotate", "key", "--rewrap"),
        (*keys, "grant", "key", "--to", "111111111111"),
        (*keys, "disable", "key"),
    ]


def _folder_commands(data: Path, backup: Path, policy: Path) -> list[Words]:
    """Those that need no service."""
    beside = data.parent
    return [
        *_identity_commands(data),
        ("users", "--data", str(data), "put-policy", "alice", "all", str(policy)),
        ("users", "--data", str(data), "remove", "alice"),
        ("keys", "--data", str(data), "change-master"),
        ("verify", str(data)),
        ("verify", str(backup)),
        ("usage", "--data", str(data)),
        ("backup", "--data", str(data), str(beside / "new-backup")),
        ("restore", str(backup), "--data", str(beside / "restored")),
        ("salvage", str(data), "--data", str(beside / "salvaged")),
        ("cluster", "certificates", "--hosts", "a,b,c", "--out", str(beside / "certificates")),
        ("serve", "--data", str(data), "--port", "0", *_OPTIONS),
        ("serve", "--data", str(beside / "first"), "--port", "0", *_OPTIONS),
    ]


def _service_commands(node: NodeProcess, disk: Path) -> list[Words]:
    """Those that ask a service, and those that run beside it."""
    at = ("--data", str(node.data))
    return [
        *_identity_commands(node.data),
        ("verify", str(node.data)),
        ("usage", *at),
        ("metrics", *at),
        ("backup", *at, str(disk / "backup")),
        ("queues", "list", *at),
        ("queues", "show", "orders", *at),
        ("messages", "browse", "orders", *at),
        ("messages", "send", "orders", "--body", "x", *at),
        ("redrive", "plan", "doomed", "--to", "orders", *at),
        ("redrive", "start", "doomed", "--to", "orders", "--all", *at),
        ("redrive", "list", "doomed", *at),
        ("audit", *at),
        ("purge-queue", "doomed", *at),
        ("restore-queue", "--list", *at),
        ("delete-queue", "doomed", *at),
        ("archive", "status", *at),
        ("serve", *at, "--port", "0"),
    ]


def _output_commands() -> list[Words]:
    """Those whose output goes into a file on that disk."""
    return [("example-config",), ("version",)]


def _with(words: Words, commands: list[Words]) -> list[Words]:
    return [command for command in commands if not words or set(words) & set(command)]


def _problems(state: State, commands: list[Words], output: Path | None = None) -> list[str]:
    with ThreadPoolExecutor(state.at_once) as pool:
        found = pool.map(lambda words: _problem(words, output), commands)
        return [problem for problem in found if problem]


def _problem(words: Words, output: Path | None) -> str:
    """The command with its output if it did what it must not do; else empty."""
    ended, said = _ran(words, output)
    shown = f"{' '.join(words)}: status {ended}: {said.strip()[-600:]}"
    if any(text in said for text in _NEVER_SAID):
        return shown
    if ended == DISK_REFUSED:
        return "" if any(text in said for text in _SAID_IF_REFUSED) else shown
    is_ordinary = any(text in said for text in _ORDINARY)
    return "" if ended == 0 or is_ordinary else shown


def _ran(words: Words, output: Path | None) -> tuple[int | None, str]:
    """Exit status and output; None if the command did not end, as a service does that starts."""
    seconds = _SERVES_S if words[0] == "serve" else _ENDS_S
    try:
        if output is None:
            done = run_command(*words, seconds=seconds)
        else:
            with output.open("a") as stream:
                done = run_command(*words, seconds=seconds, output=stream)
    except subprocess.TimeoutExpired as error:
        return (0 if words[0] == "serve" else None), str(error)
    except OSError:  # the file cannot be made: the shell would say so
        return 0, ""
    return done.returncode, (done.stdout or "") + done.stderr


# -- pages -----------------------------------------------------------------------------------------


def _page_problems(node: NodeProcess) -> list[str]:
    """Call every page of the console, as the OpenAPI document lists them."""
    with urllib.request.urlopen(f"{node.url}/_holdfast/api/openapi.json", timeout=60) as answer:
        paths: dict[str, Any] = json.load(answer)["paths"]
    problems = []
    for path, methods in paths.items():
        if "/api/" not in path or path.endswith(".json"):
            continue  # those for programs have no JSON, or repeat the commands
        page = path.format(queue="orders", sequence=1, place="x", queue_id=1)
        for method in methods.keys() & {"get", "post"}:
            content = None if method == "get" else _CONTENTS.get(path.rpartition("/")[2], {})
            problems.append(_page_problem(node, page, content))
    return [problem for problem in problems if problem]


_CONTENTS: dict[str, object] = {
    "attributes": {"attributes": {"DelaySeconds": "1"}},
    "tags": {"tags": {"a": "b"}},
    "messages": {"body": "x"},
    "users": {"user": "carol"},
    "policies": {"user": "alice", "name": "all", "document": _POLICY},
    "access-keys": {"user": "alice"},
}
"""Bodies by the last part of a page's path; other pages get an empty object."""


def _page_problem(node: NodeProcess, page: str, content: object) -> str:
    try:
        answered, said = ask(node.url, node.credentials, page.removeprefix("/_holdfast/"), content)
    except OSError as error:
        return f"{page}: no answer: {error}"
    is_wrong = answered >= 500 and answered != 503
    is_wrong = is_wrong or any(text in str(said) for text in _NEVER_SAID)
    return f"{page}: {answered} {said}" if is_wrong else ""


def _action_problems(node: NodeProcess) -> list[str]:
    """Call the actions that write."""
    url = f"{node.url}/000000000000/orders"
    calls: list[tuple[str, dict[str, Any]]] = [
        ("SendMessage", {"QueueUrl": url, "MessageBody": "x" * 200_000}),
        ("ReceiveMessage", {"QueueUrl": url}),
        ("SetQueueAttributes", {"QueueUrl": url, "Attributes": {"DelaySeconds": "2"}}),
        ("TagQueue", {"QueueUrl": url, "Tags": {"c": "d"}}),
        ("CreateQueue", {"QueueName": "another"}),
        ("PurgeQueue", {"QueueUrl": url}),
        ("DeleteQueue", {"QueueUrl": url}),
        ("CreateQueue", {"QueueName": "orders"}),
    ]
    problems = []
    raw = RawClient(node.url, node.credentials)
    for action, members in calls:
        try:
            answer = raw.json_call(action, **members)
        except OSError as error:
            problems.append(f"{action}: no answer: {error}")
        else:
            if answer.status not in (200, 503):
                problems.append(f"{action}: {answer.status} {answer.text}")
    return problems


# -- afterwards ------------------------------------------------------------------------------------


def _refusals_of(node: NodeProcess) -> list[str]:
    """Errors of a service whose disk has space again, once it had a moment."""

    def send(client: Boto3Client) -> None:
        url = client.call("CreateQueue", QueueName="afterwards")["QueueUrl"]
        client.call("SendMessage", QueueUrl=url, MessageBody="x")

    client = Boto3Client(node.url, node.credentials)
    refused = _refusals("with space again", partial(send, client))
    client.close()
    return refused


def _refusals(when: str, do: Callable[[], object]) -> list[str]:
    """The last error of what is asked again and again until it is done."""
    refused: list[str] = []

    def works() -> bool:
        refused.clear()
        try:
            do()
        except ClientError as error:
            refused.append(f"{when}: {error}")
        return not refused

    with suppress(AssertionError):
        eventually(works)
    return refused


def _log_problems(node: NodeProcess) -> list[str]:
    lines = node.log.read_text(errors="replace").splitlines()
    return [line[-600:] for line in lines if any(text in line for text in _NEVER_SAID)]


if __name__ == "__main__":
    sys.exit(main())
