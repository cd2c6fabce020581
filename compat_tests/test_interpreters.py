"""Which interpreters `make pythons` finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests import interpreters


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with no interpreter yet: `bin` is its PATH, `pyenv/versions` has what pyenv installed."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    monkeypatch.setattr(interpreters, "SUPPORTED", ("3.81", "3.82"))
    return tmp_path


def install(path: Path, script: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def found(capsys: pytest.CaptureFixture[str], *left_out: str) -> list[str]:
    interpreters.main(list(left_out))
    return capsys.readouterr().out.splitlines()


def test_an_interpreter_on_the_path_is_found(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = install(machine / "bin/python3.82", "echo 3.82")
    assert found(capsys) == [python]
    assert found(capsys, "3.82") == []


def test_a_shim_that_does_not_start_gives_way_to_pyenvs_version(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(machine / "bin/python3.81", "exit 127")
    install(machine / "bin/pyenv", f"echo {machine}/pyenv")
    python = install(machine / "pyenv/versions/3.81.4/bin/python3.81", "echo 3.81")
    assert found(capsys) == [python]


def test_a_name_with_another_version_behind_it_is_left_out(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(machine / "bin/python3.81", "echo 3.9")
    assert found(capsys) == []
