"""Settings of sign-in by an OpenID Connect provider, together."""

from __future__ import annotations

import pytest

from sqs_api.operators.role_policies import ROLES
from sqs_api.settings.config import ConfigRefused, load
from sqs_api.settings.sign_in_settings import ROLE_NAMES, roles_in

WHOLE = {
    "oidc_issuer": "https://login.example.com/realms/main",
    "oidc_client_id": "holdfast",
    "oidc_roles": "sre=operator, a=b=viewer",
}


def test_the_roles_of_settings_are_those_there_are() -> None:
    assert [each["name"] for each in ROLES] == [*ROLE_NAMES]


def test_a_value_may_have_an_equals_sign() -> None:
    assert roles_in(WHOLE["oidc_roles"]) == {"sre": "operator", "a=b": "viewer"}


def test_a_whole_provider_is_taken() -> None:
    assert load(WHOLE, None).oidc_issuer == WHOLE["oidc_issuer"]


@pytest.mark.parametrize("missing", WHOLE)
def test_a_part_of_a_provider_is_refused(missing: str) -> None:
    with pytest.raises(ConfigRefused, match="oidc_issuer: needs oidc_client_id and oidc_roles"):
        load({name: text for name, text in WHOLE.items() if name != missing}, None)


def test_a_secret_without_a_provider_and_a_provider_in_open_mode_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigRefused, match="nobody signs in"):
        load({**WHOLE, "auth": "open"}, None)
    monkeypatch.setenv("HOLDFAST_OIDC_CLIENT_SECRET", "secret")
    with pytest.raises(ConfigRefused, match="oidc_client_secret: needs oidc_issuer"):
        load({}, None)
