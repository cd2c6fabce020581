"""An accepted request for a page that changes something cannot be sent again, after a restart
neither."""

from __future__ import annotations

import pytest

from auth.auth_errors import AccessDenied
from auth.credentials import AccessKey, CredentialSet
from auth.signing import SigningKey, signed_headers
from auth.sigv4 import Verifier
from sqs_api.admin.admin_access import AdminAccess, AdminRequest
from sqs_api.admin.routes import RESERVED
from sqs_api.settings.origins import KnownHosts

ACCOUNT, REGION = "0" * 12, "us-east-1"
SENT_BEFORE = "This very request was sent before: sign another one."
EARLIER = "This request was signed before the service started: sign another one."
NOON_S = 1_800_000_000.0


class _Service:
    """Access to pages at a settable time; `restart` is a new process at the same address."""

    def __init__(self) -> None:
        self.key = AccessKey("LOCALKEY", "secret", ACCOUNT, "local")
        self.now_s = NOON_S
        self.restart()

    def restart(self) -> None:
        self.access = AdminAccess(
            KnownHosts("127.0.0.1", None),
            local_key=self.key,
            verifier=Verifier(CredentialSet([])),
            account=ACCOUNT,
            region=REGION,
            wall_s=lambda: self.now_s,
            session_of=None,
        )

    def request(self, page: str = "backups") -> AdminRequest:
        """Signed now."""
        key = SigningKey(self.key.access_key_id, self.key.secret_access_key, REGION)
        target = RESERVED + page
        headers = signed_headers(key, "POST", target, {"host": "localhost"}, b"", self.now_s)
        raw = {name.lower().encode(): text.encode() for name, text in headers.items()}
        return AdminRequest("POST", target.encode(), raw, b"", "127.0.0.1", False)

    def admit(self, request: AdminRequest) -> None:
        self.access.signer(request, may_be_page=False)
        self.access.accept_once(request)


@pytest.fixture
def service() -> _Service:
    started = _Service()
    started.now_s += 0.9
    return started


def _refusal(service: _Service, request: AdminRequest) -> str:
    with pytest.raises(AccessDenied) as refused:
        service.admit(request)
    return refused.value.message


def test_a_request_is_not_taken_by_the_next_process(service: _Service) -> None:
    accepted = service.request()
    service.admit(accepted)
    service.now_s += 2
    service.restart()

    assert _refusal(service, accepted) == EARLIER
    service.admit(service.request())


def test_a_request_is_taken_once_however_long_it_is_valid(service: _Service) -> None:
    accepted = service.request()
    service.admit(accepted)

    for _ in range(4):
        service.now_s += 61
        service.admit(service.request())
        assert _refusal(service, accepted) == SENT_BEFORE


def test_signatures_that_are_valid_no_more_are_forgotten(service: _Service) -> None:
    for _ in range(100):
        service.now_s += 60
        service.admit(service.request())

    assert len(service.access._sent._until_s) < 40
