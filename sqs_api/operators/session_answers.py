"""Sessions of browsers: sign in with an access key, see where one is signed in, end that."""

from __future__ import annotations

from typing import TypedDict

import msgspec

from cluster.keys.session_store import Session
from sqs_api.admin.asked import Asked
from sqs_api.admin.browser_sessions import BrowserSessions
from sqs_api.admin.routes import Route
from sqs_api.operators.operator_context import OperatorContext
from visibility.contract.errors import InvalidParameterValue


class Challenged(TypedDict):
    """A challenge, to be signed within two minutes by the clock of the service."""

    challenge: str
    now_ms: int


class SignIn(msgspec.Struct, forbid_unknown_fields=True):
    """The answer to a challenge: the signature of this request."""

    challenge: str


class EndSessions(msgspec.Struct, forbid_unknown_fields=True):
    """A session that is to end, or (null) all of the caller."""

    session: str | None


class ShownSession(TypedDict):
    """A browser that is signed in. `is_this` is the one that asks."""

    session: str
    created_at_ms: int
    expires_at_ms: int
    access_key_id: str | None
    source_ip: str
    user_agent: str
    is_this: bool


class Ended(TypedDict):
    """The number of sessions that ended."""

    ended: int


async def show_challenge(context: OperatorContext, asked: Asked) -> Challenged:
    """A challenge for a browser that signs in. Anyone may ask."""
    return {"challenge": _sessions(context).challenge(), "now_ms": context.now_ms}


async def sign_in(context: OperatorContext, asked: Asked, given: SignIn) -> ShownSession:
    """Begin a session of the signer, whose cookie the answer sets. It lasts eight hours, at most as
    long as the access key.

    It ends when it is ended here, when the key is disabled or removed, and when the policies or
    tags of the user change.
    """
    sessions = _sessions(context)
    if asked.is_trusted or b"authorization" not in asked.sent.headers:
        raise InvalidParameterValue("Sign this request with an access key of a user or account.")
    session, asked.cookie = await context.user_admin.change(
        lambda _: sessions.begin(asked.sent, asked.caller, given.challenge)
    )
    asked.noted["session"] = session.session_id
    return _shown(session, is_this=True)


async def list_sessions(context: OperatorContext, asked: Asked) -> list[ShownSession]:
    """The sessions of the caller, the newest first."""
    sessions = _sessions(context)
    this = sessions.session(asked.sent)
    found = context.user_admin.read(
        lambda store: store.sessions.of(asked.caller.account, asked.caller.user)
    )
    this_id = None if this is None else this.session_id
    return [_shown(each, is_this=each.session_id == this_id) for each in found]


async def end_sessions(context: OperatorContext, asked: Asked, given: EndSessions) -> Ended:
    """Sign out: here, in another browser of the caller, or in all."""
    sessions = _sessions(context)
    this = sessions.session(asked.sent)
    asked.noted["session"] = given.session or "all"
    caller = asked.caller
    ended = await context.user_admin.change(
        lambda store: store.sessions.end(caller.account, caller.user, given.session)
    )
    if this is not None and given.session in (None, this.session_id):
        asked.cookie = sessions.forgotten(asked.sent)
    return {"ended": ended}


def _sessions(context: OperatorContext) -> BrowserSessions:
    if context.sessions is None:
        raise InvalidParameterValue("Nobody signs in to a service in open mode.")
    return context.sessions


def _shown(session: Session, *, is_this: bool) -> ShownSession:
    stored = session.stored
    return {
        "session": session.session_id,
        "created_at_ms": stored.created_at_ms,
        "expires_at_ms": stored.expires_at_ms,
        "access_key_id": stored.access_key_id,
        "source_ip": stored.source_ip,
        "user_agent": stored.user_agent,
        "is_this": is_this,
    }


ROUTES = (
    Route("GET", "api/sessions/challenge", None, show_challenge, is_open=True),
    Route("GET", "api/sessions", None, list_sessions),
    Route("POST", "api/sessions", None, sign_in),
    Route("POST", "api/sessions/end", None, end_sessions),
)
