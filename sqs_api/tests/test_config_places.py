"""Refused settings are named with file, line and the name that was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from sqs_api.settings.config import ConfigRefused, load
from sqs_api.settings.refusals import line_of

WHOLE = '''\
# the first line
port = 9324
browser_origins = """
https://a
"""

[[queues]]
name = "orders"

[queues.attributes]
VisibilityTimeout = 60

[queues.policy]
Statement = [
  { Effect = "Allow" },
  { Effect = "Deny" },
]

[[queues]]
# colour = "red"
name = "other"
"a.b" = 1

[[users]]
name = "ann"
access_keys = [
  { access_key_id = "AKIA" },
]
'''


def _refusal(folder: Path, text: str, **flags: object) -> str:
    file = folder / "c.toml"
    file.write_text(text)
    with pytest.raises(ConfigRefused) as refused:
        load(dict(flags), file)
    said = str(refused.value)
    assert "\n" not in said
    return said.removeprefix(f"{file}:")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (["port"], 2),
        (["browser_origins"], 3),
        (["queues"], 7),
        (["queues", "0", "name"], 8),
        (["queues", "0", "attributes"], 10),
        (["queues", "0", "attributes", "VisibilityTimeout"], 11),
        (["queues", "0", "policy", "Statement", "1", "Effect"], 14),
        (["queues", "1"], 19),
        (["queues", "1", "name"], 21),
        (["queues", "1", "a.b"], 22),
        (["users", "0", "access_keys", "0", "access_key_id"], 26),
        (["queues", "0", "missing", "deep"], 7),
        (["queues", "2"], 7),
        (["missing"], None),
        ([], None),
    ],
)
def test_the_line_is_that_of_the_statement_that_has_the_key(
    path: list[str], line: int | None
) -> None:
    assert line_of(WHOLE, path) == line
    assert line_of(WHOLE.replace("\n", "\r\n"), path) == line


def test_a_file_with_many_queues_is_searched_fast() -> None:
    text = "".join(f'[[queues]]\nname = "q{number}"\n' for number in range(1000))

    assert line_of(text, ["queues", "777", "name"]) == 1556


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\nprot = 1", "2: prot: unknown setting; did you mean port?"),
        ("[serve]\nport = 1", "1: serve: unknown setting"),
        ("# a\nport = 70000", "2: port: must be a whole number from 0 to 65535"),
        (
            '[[queues]]\nname = "a"\ntag = {}',
            "3: queues.0.tag: unknown setting; did you mean tags?",
        ),
        ("[[queues]]\ntags = {}\n", "1: queues.0.name: Field required"),
        (
            '[[queues]]\nname = "b"\n[[queues]]\nname = "a"\nattributes = { VisibilityTimout = 3 }',
            "3: queues.1: Unknown Attribute VisibilityTimout.; did you mean VisibilityTimeout?",
        ),
        (
            '[[queues]]\nname = "a"\n[[queues]]\nname = "a"',
            "3: queues.1: queue a is declared twice",
        ),
        (
            '[[users]]\nname = "a"\n[[users.access_keys]]\naccess_key = "AKIA"',
            "3: users.0.access_keys.0.access_key_id: Field required",
        ),
        ('tls_certificate = "c"', "1: tls_certificate: needs tls_key"),
        ('\n\nsecret_access_key = "x"', "3: secret_access_key: comes from HOLDFAST_SECRET"),
    ],
)
def test_a_refusal_begins_with_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    assert _refusal(tmp_path, text).startswith(said)


def test_what_is_not_from_the_file_has_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _refusal(tmp_path, "port = 1", port="x").startswith("port: ")
    assert _refusal(tmp_path, "host = 'h'", auth="open").startswith("auth: ")
    monkeypatch.setenv("HOLDFAST_PROT", "1")
    assert _refusal(tmp_path, "port = 1") == "prot: unknown setting; did you mean port?"
