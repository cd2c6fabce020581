"""Settings of sign-in to the console by an OpenID Connect provider."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, SecretStr

ROLE_NAMES = ("watcher", "viewer", "operator", "admin")
"""The roles of `operators/role_policies.py`, the weakest first."""
_CLAIM = re.compile(r"[A-Za-z0-9_:/-]+([.][A-Za-z0-9_:/-]+)*")


def is_trusted_address(url: str) -> bool:
    """True for https, and for http on this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https" or (parts.scheme == "http" and host == "localhost"):
        return bool(host)
    try:
        return parts.scheme == "http" and ip_address(host).is_loopback
    except ValueError:
        return False


def _issuer(text: str | None) -> str | None:
    if text is not None and (not is_trusted_address(text) or set("?#@") & set(text)):
        raise ValueError("must be an https:// address")
    return text


def _claim(text: str) -> str:
    if _CLAIM.fullmatch(text) is None:
        raise ValueError('must be the name of a claim, such as "realm_access.roles"')
    return text


def roles_in(text: str) -> dict[str, str]:
    """Roles by the values of a claim, from "VALUE=ROLE,VALUE=ROLE". Raises ValueError."""
    pairs = [each.rpartition("=") for each in text.split(",") if each.strip()]
    if any(not value.strip() or role.strip() not in ROLE_NAMES for value, _, role in pairs):
        names = ", ".join(ROLE_NAMES)
        raise ValueError(f'must be of the form "sre=operator,staff=watcher"; roles are {names}')
    return {value.strip(): role.strip() for value, _, role in pairs}


def _roles(text: str | None) -> str | None:
    if text is not None and not roles_in(text):
        raise ValueError("must name a role")
    return text


class SignInSettings(BaseModel):
    """The OpenID Connect provider."""

    model_config = ConfigDict(defer_build=True)

    oidc_issuer: Annotated[str | None, AfterValidator(_issuer)] = None
    """Issuer of an OpenID Connect provider at which people sign in to the console, such as
    "https://login.example.com/realms/main"; by default none. Needs oidc_client_id and
    oidc_roles."""
    oidc_client_id: str | None = None
    """This service's id at the provider. HOLDFAST_OIDC_CLIENT_SECRET has its secret, if it has
    one."""
    oidc_client_secret: SecretStr | None = None
    """This service's secret at the provider, from HOLDFAST_OIDC_CLIENT_SECRET only."""
    oidc_roles: Annotated[str | None, AfterValidator(_roles)] = None
    """Roles (watcher, viewer, operator, admin) by values of a claim, such as
    "sre=operator,staff=watcher". Of several the strongest counts; without one nobody signs in."""
    oidc_role_claim: Annotated[str, AfterValidator(_claim)] = "groups"
    """The claim with the values that oidc_roles names: a text or a list. Dots lead into objects."""
    oidc_name_claim: Annotated[str, AfterValidator(_claim)] = "preferred_username"
    """The claim with the name of the user."""
    oidc_scopes: str = "openid profile email"
    """Scopes to ask for."""


def wrong_sign_in(settings: SignInSettings, *, is_open: bool) -> str | None:
    """The reason why these settings do not fit together; None if they do."""
    given = [settings.oidc_issuer, settings.oidc_client_id, settings.oidc_roles]
    if any(given) and not all(given):
        return "oidc_issuer: needs oidc_client_id and oidc_roles, and the other way round"
    if settings.oidc_client_secret is not None and not all(given):
        return "oidc_client_secret: needs oidc_issuer"
    if settings.oidc_issuer is not None and is_open:
        return "oidc_issuer: nobody signs in to a service with auth open"
    return None
