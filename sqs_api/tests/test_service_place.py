"""Commands find the service and the key to sign with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from auth.credentials import AccessKey
from auth.signing import SigningKey
from sqs_api.settings.service_note import read_note, write_note
from sqs_api.settings.service_place import Place, PlaceUnknown, find_place, key_of_environment
from sqs_api.tests.commands import Said, run

LOCAL = AccessKey("LOCALKEY", "local secret", "0" * 12, "local")
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "secret"}
SDK = SigningKey("AKIA", "secret", "us-east-1")


@pytest.fixture
def noted(tmp_path: Path) -> Path:
    """The folder of a service that listens with TLS on all addresses."""
    folder = tmp_path / "noted"
    folder.mkdir()
    write_note(folder, "https://0.0.0.0:7001", "http://127.0.0.1:7002", LOCAL)
    return folder


def _find(url: str | None, data: Path | None, **environment: str) -> Place:
    given = ENVIRONMENT | environment
    return find_place(url, data, given, lambda: key_of_environment(given))


def _seen(place: Place) -> tuple[str, str]:
    key = place.find_key()
    assert key is not None
    return place.admin_url, key.access_key_id


NOTED = ("http://127.0.0.1:7002", "LOCALKEY")


def test_the_folder_says_where_its_service_is(noted: Path, tmp_path: Path) -> None:
    configuration = tmp_path / "holdfast.toml"
    configuration.write_text(f'data = "{noted}"\n')

    assert _seen(_find(None, noted)) == NOTED
    assert _seen(_find(None, None, HOLDFAST_DATA=str(noted))) == NOTED
    assert _seen(_find(None, None, HOLDFAST_CONFIG=str(configuration))) == NOTED
    assert _find(None, noted).url == "https://0.0.0.0:7001"


def test_an_option_wins_over_the_environment_and_that_over_the_configured_folder(
    noted: Path,
) -> None:
    elsewhere = {"AWS_ENDPOINT_URL": "http://127.0.0.1:8000/", "HOLDFAST_DATA": str(noted)}

    assert _seen(_find("https://h:1/x/", noted, **elsewhere)) == ("https://h:1/x", "AKIA")
    assert _seen(_find(None, noted, **elsewhere)) == NOTED
    assert _seen(_find(None, None, **elsewhere)) == ("http://127.0.0.1:8000", "AKIA")
    assert _seen(_find(None, None, HOLDFAST_DATA="nowhere")) == ("http://127.0.0.1:9324", "AKIA")


@pytest.mark.parametrize(
    ("url", "is_noted"),
    [
        ("https://localhost:7001", True),
        ("https://127.0.0.1:7001/", True),
        ("https://[::1]:7001", True),
        ("https://127.0.0.1:7003", False),
        ("https://sqs.example:7001", False),
        ("http://localhost", False),
    ],
)
def test_the_local_key_is_for_the_noted_service_only(noted: Path, url: str, is_noted: bool) -> None:
    assert (_seen(_find(url, noted)) == NOTED) == is_noted


def test_an_empty_variable_is_as_if_not_set(noted: Path) -> None:
    nowhere = _find(None, None, AWS_ENDPOINT_URL="", HOLDFAST_DATA="nowhere")

    assert _seen(nowhere) == ("http://127.0.0.1:9324", "AKIA")
    assert _seen(_find(None, None, AWS_ENDPOINT_URL="", HOLDFAST_DATA=str(noted))) == NOTED


@pytest.mark.parametrize(
    "url",
    ["nine", "ftp://h", "http://", "http://h:x", "http://h:0", "//h:1", "http://[::1", "http://]"],
)
def test_what_is_no_address_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(PlaceUnknown, match="is no http:// or https:// address"):
        _find(url, tmp_path)


def test_access_keys_are_found_as_the_sdks_find_them(tmp_path: Path) -> None:
    file = tmp_path / ".aws" / "credentials"
    file.parent.mkdir()
    file.write_text(
        "[default]\naws_access_key_id = A\naws_secret_access_key = B%C\n"
        "[work]\naws_access_key_id = D\naws_secret_access_key = E\naws_session_token = F\n"
    )
    home = {"HOME": str(tmp_path)}

    assert key_of_environment(ENVIRONMENT | home) == SDK
    assert key_of_environment(ENVIRONMENT | {"AWS_REGION": "eu-west-1"}) == SDK._replace(
        region="eu-west-1"
    )
    assert key_of_environment(ENVIRONMENT | {"AWS_SESSION_TOKEN": "t"}) == SDK._replace(
        session_token="t"
    )
    assert key_of_environment(home) == SigningKey("A", "B%C", "us-east-1")
    assert key_of_environment(home | {"AWS_PROFILE": "work"}) == SigningKey(
        "D", "E", "us-east-1", "F"
    )
    named = {"AWS_SHARED_CREDENTIALS_FILE": str(file)}
    assert key_of_environment(named) == SigningKey("A", "B%C", "us-east-1")
    assert key_of_environment(home | {"AWS_PROFILE": "none"}) is None
    assert key_of_environment({"HOME": str(tmp_path / "nobody")}) is None


def test_a_credentials_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    file.write_text("no section\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)

    said = run("restore-queue", "q", "--url", "http://127.0.0.1:9")

    assert said.status == 2
    assert said.err.startswith(f"cannot read {file}: ")


# -- messages -------------------------------------------------------------------------------------


def test_a_folder_without_a_service_is_named(tmp_path: Path) -> None:
    said = run("restore-queue", "q", "--data", tmp_path)

    assert said == Said(2, "", f"no service runs on {tmp_path}: name another with --url")


def test_a_service_that_was_killed_is_named(tmp_path: Path) -> None:
    write_note(tmp_path, "http://127.0.0.1:9", "http://127.0.0.1:9", LOCAL)

    said = run("restore-queue", "q", "--data", tmp_path)

    assert said == Said(
        2,
        "",
        f"cannot ask http://127.0.0.1:9: Connection refused (noted in {tmp_path} by process "
        f"{os.getpid()}; "
        "if that was killed, start it again or name another service with --url)",
    )


@pytest.mark.parametrize("content", [b"{", b"", b"[]", b"\xff"])
def test_a_damaged_note_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "service.json").write_bytes(content)

    said = run("restore-queue", "q", "--data", tmp_path)

    assert said.err == f"{tmp_path}/service.json is damaged: start the service again"


@pytest.mark.parametrize(
    "address", ["http://h:x", "http://h:99999", "nine", "http://[::1", "ftp://h"]
)
def test_a_note_with_a_bad_address_is_a_damaged_one(tmp_path: Path, address: str) -> None:
    write_note(tmp_path, address, "http://127.0.0.1:9", LOCAL)
    elsewhere = "http://127.0.0.1:9"

    assert _seen(_find(elsewhere, tmp_path)) == (elsewhere, "AKIA")
    with pytest.raises(PlaceUnknown, match=r"service\.json is damaged: start the service again"):
        _find(None, tmp_path)
    write_note(tmp_path, "http://127.0.0.1:9", address, LOCAL)
    with pytest.raises(PlaceUnknown, match=r"service\.json is damaged: start the service again"):
        _find(None, tmp_path)


@pytest.mark.parametrize("command", ["delete-queue", "purge-queue"])
def test_the_folder_of_a_configuration_says_where_its_service_is(
    noted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:8")
    write_note(noted, "http://127.0.0.1:9", "http://127.0.0.1:9", LOCAL)
    with_data, without = tmp_path / "with.toml", tmp_path / "without.toml"
    with_data.write_text(f'data = "{noted}"\n')
    without.write_text('region = "eu-west-1"\n')

    def asked(*options: object) -> str:
        said = run(command, "q", *options)
        assert (said.status, said.out) == (2, "")
        return said.err.partition(":9" if ":9" in said.err else ":8")[1]

    assert asked("--config", with_data) == ":9"
    assert asked("--config", without) == ":8"
    assert asked("--config", with_data, "--url", "http://127.0.0.1:8") == ":8"
    assert asked("--config", without, "--data", noted) == ":9"


def test_a_note_takes_the_place_of_one_that_was_left(noted: Path) -> None:
    (noted / "service.json.new").write_text("left")
    write_note(noted, "http://h:1", "http://h:1", LOCAL)

    note = read_note(noted)

    assert note is not None
    assert (note.url, note.pid) == ("http://h:1", os.getpid())
    assert [child.name for child in noted.iterdir()] == ["service.json"]
