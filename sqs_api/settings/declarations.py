"""Declarations: queues and users of the configuration file, which exist once the service listens.

The file overrides existing settings of the things it names; it deletes nothing. A start with an
unchanged file changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from auth.policy_document import PolicyRefused, check_policy_of_user
from sqs_api.settings.refusals import perhaps_meant
from visibility.contract.attributes import ATTRIBUTES, checked_tags, initial_attributes
from visibility.contract.errors import InvalidAttributeName, QueueError
from visibility.contract.naming import is_account

_QUEUE_LIMIT = 1000
_SECRET_CHARACTERS_MIN = 16
"""A fixed secret that is shorter can be guessed."""


def _account(text: str) -> str:
    if not is_account(text):
        raise ValueError("must be 12 digits")
    return text


Account = Annotated[str, AfterValidator(_account)]


class _Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DeclaredQueue(_Declared):
    """A queue. `attributes` has AWS's names; values may be numbers, booleans and tables."""

    name: str
    account: Account | None = None
    region: str | None = None
    attributes: dict[str, Any] = Field(default_factory=dict)
    tags: dict[str, str] = Field(default_factory=dict)
    dead_letter_queue: str | None = None
    """Name of a queue of the same account and region; replaces RedrivePolicy, with
    `max_receive_count`."""
    max_receive_count: int = 5
    policy: dict[str, Any] | Path | None = None
    """The Policy attribute: a table, or a JSON file."""

    @model_validator(mode="after")
    def _is_whole(self) -> DeclaredQueue:
        try:
            self.texts("0" * 12, "us-east-1")
            checked_tags(self.name, {}, self.tags)
        except InvalidAttributeName as error:
            unknown = next((name for name in self.attributes if name not in ATTRIBUTES), "")
            raise ValueError(error.message + perhaps_meant(unknown, ATTRIBUTES)) from error
        except QueueError as error:
            raise ValueError(error.message) from error
        return self

    def texts(self, account: str, region: str) -> dict[str, str]:
        """The attributes as CreateQueue takes them, for a queue there.

        Raises QueueError, ValueError.
        """
        texts = {name: _text(value) for name, value in self.attributes.items()}
        if self.dead_letter_queue is not None:
            target = f"arn:aws:sqs:{region}:{account}:{self.dead_letter_queue}"
            texts["RedrivePolicy"] = json.dumps(
                {"deadLetterTargetArn": target, "maxReceiveCount": self.max_receive_count}
            )
        if self.policy is not None:
            texts["Policy"] = document_of(self.policy)
        if self.name.endswith(".fifo"):
            texts.setdefault("FifoQueue", "true")
        initial_attributes(self.name, texts)
        return texts


class DeclaredKey(_Declared):
    """An access key that is known beforehand. Its secret comes from a file or the environment."""

    access_key_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9]{4,128}$")]
    secret_access_key_file: Path | None = None
    secret_access_key_env: str | None = None

    @model_validator(mode="after")
    def _has_one_secret(self) -> DeclaredKey:
        if (self.secret_access_key_file is None) == (self.secret_access_key_env is None):
            raise ValueError("needs either secret_access_key_file or secret_access_key_env")
        return self

    def secret(self, environment: Mapping[str, str]) -> str:
        """The secret. Raises ValueError with a reason."""
        if self.secret_access_key_file is not None:
            return checked_secret(_read(self.secret_access_key_file).strip())
        name = self.secret_access_key_env or ""
        if name not in environment:
            raise ValueError(f"environment variable {name} is not set")
        return checked_secret(environment[name])


class DeclaredUser(_Declared):
    """A user with policies (name to a table, or to a JSON file) and access keys."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9+=,.@_-]{1,64}$")]
    account: Account | None = None
    tags: dict[str, str] = Field(default_factory=dict)
    policies: dict[str, dict[str, Any] | Path] = Field(default_factory=dict)
    access_keys: tuple[DeclaredKey, ...] = ()

    @model_validator(mode="after")
    def _has_policies(self) -> DeclaredUser:
        self.documents()
        return self

    def documents(self) -> dict[str, str]:
        """The policies as texts. Raises ValueError with a reason."""
        documents = {name: document_of(policy) for name, policy in self.policies.items()}
        for name, document in documents.items():
            try:
                check_policy_of_user(document)
            except PolicyRefused as error:
                raise ValueError(f"policies.{name}: {error}") from error
        return documents


TABLES: dict[str, type[BaseModel]] = {
    "queues": DeclaredQueue,
    "users": DeclaredUser,
    "access_keys": DeclaredKey,
}
"""The models of the lists of tables, by name."""


def in_order(queues: tuple[DeclaredQueue, ...]) -> tuple[DeclaredQueue, ...]:
    """The queues with dead-letter queues before those that name them. Raises ValueError for a name
    that comes twice, with the queue's number in front.

    Two that name each other stay in the order of the file: the first cannot be made, which its own
    error says.
    """
    by_name: dict[tuple[str | None, str | None, str], DeclaredQueue] = {}
    for number, queue in enumerate(queues[:_QUEUE_LIMIT]):
        place = (queue.account, queue.region, queue.name)
        if place in by_name:
            raise ValueError(f"{number}: queue {queue.name} is declared twice")
        by_name[place] = queue
    if len(queues) > _QUEUE_LIMIT:
        raise ValueError(f"{_QUEUE_LIMIT}: at most {_QUEUE_LIMIT} queues can be declared")
    ordered: dict[int, DeclaredQueue] = {}

    def add(queue: DeclaredQueue, behind: frozenset[int]) -> None:
        target = by_name.get((queue.account, queue.region, queue.dead_letter_queue or ""))
        if target is not None and id(target) not in behind | ordered.keys():
            add(target, behind | {id(target)})
        ordered.setdefault(id(queue), queue)

    for queue in queues:
        add(queue, frozenset({id(queue)}))
    return tuple(ordered.values())


def document_of(policy: dict[str, Any] | Path) -> str:
    """A policy's text. Raises ValueError with a reason."""
    return _read(policy) if isinstance(policy, Path) else json.dumps(policy)


def checked_secret(secret: str | SecretStr) -> str:
    """A secret access key that was given. Raises ValueError if it can be guessed or is unusable."""
    text = secret.get_secret_value() if isinstance(secret, SecretStr) else secret
    if len(text) < _SECRET_CHARACTERS_MIN or not text.isascii() or not text.isprintable():
        raise ValueError(
            f"a secret access key must have at least {_SECRET_CHARACTERS_MIN} printable characters"
        )
    return text


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot read {file}: it is not UTF-8") from error


def _text(value: object) -> str:
    """AWS's attributes are strings."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value)
