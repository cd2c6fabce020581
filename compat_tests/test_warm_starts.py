"""A command that starts as a copy of a process that has read its code does what one of its own
does."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from compat_tests import warm_starts
from compat_tests.node_process import NodeProcess, command, environment, run_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="copies are made on Linux only")


@pytest.fixture(autouse=True)
def installed() -> None:
    if command()[0] == sys.executable:
        pytest.skip("the command is not installed beside this Python")


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (("version",), {}),
        ((), {}),
        (("nonsense",), {}),
        (("verify", "/nowhere"), {}),
        (("example-config",), {}),
        (("check-config",), {"HOLDFAST_PORT": "nonsense"}),
        (("queues", "list"), {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}),
    ],
    ids=lambda given: "-".join(given) or "nothing",
)
def test_a_copy_says_and_returns_the_same(
    words: tuple[str, ...], variables: dict[str, str], tmp_path: Path
) -> None:
    line, own = command(*words), environment()
    cold = subprocess.run(
        line, env={**own, **variables}, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert warm_starts.can_start(line, own, variables)

    warm = warm_starts.run(
        line, own, variables, folder=tmp_path, stdout=None, stderr=None, seconds=60
    )

    assert (warm.returncode, warm.stdout, warm.stderr) == (
        cold.returncode,
        cold.stdout,
        cold.stderr,
    )


def test_output_goes_into_the_given_file(tmp_path: Path) -> None:
    with (tmp_path / "said").open("w") as said:
        done = run_command("version", output=said)
    assert done.returncode == 0
    assert (tmp_path / "said").read_text() == run_command("version").stdout


@pytest.mark.parametrize(
    "given",
    [{"LD_PRELOAD": "x"}, {"HOLDFAST_NATIVE": "off"}, {"PYTHONPATH": "x"}, {"TMPDIR": "x"}],
    ids=lambda given: next(iter(given)),
)
def test_what_is_read_before_the_arguments_makes_a_process_of_its_own(
    given: dict[str, str],
) -> None:
    own = {"PATH": "/bin", "TMPDIR": "/tmp"}
    assert not warm_starts.can_start(command("version"), own, given)
    assert not warm_starts.can_start([sys.executable, "-m", "sqs_api"], own, {})


def test_a_service_is_killed_and_stopped_as_any_process(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path).start()
    try:
        pid = node.pid
        node.kill()
        assert not node.running
        assert not Path(f"/proc/{pid}").exists()
        node.start()
        assert node.pid != pid
        node.stop()
    finally:
        node.close()


def test_one_that_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    options = ("--port", "0", "--data", str(tmp_path / "data"))
    with pytest.raises(subprocess.TimeoutExpired):
        run_command("serve", *options, seconds=3)
    assert run_command("verify", str(tmp_path / "data")).returncode == 0, "nobody has it open"


def test_a_signal_is_its_status(tmp_path: Path) -> None:
    line, own = command("serve", "--port", "0", "--data", str(tmp_path / "data")), environment()
    with (tmp_path / "said").open("w") as said:
        process = warm_starts.start(
            line, own, {}, folder=tmp_path, stdout=said.fileno(), stderr=said.fileno()
        )
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    assert process.poll() == -signal.SIGKILL
