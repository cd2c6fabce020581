"""Authentication and authorization: bytes and time in, a Caller or an AuthError out. Pure."""

from auth.auth_errors import (
    AccessDenied,
    AuthError,
    ExpiredToken,
    IncompleteSignature,
    InvalidClientTokenId,
    MissingAuthenticationToken,
    SignatureDoesNotMatch,
)
from auth.caller import Caller
from auth.credentials import AccessKey, CredentialSet
from auth.sigv4 import Verifier
from auth.unverified import open_caller

__all__ = [
    "AccessDenied",
    "AccessKey",
    "AuthError",
    "Caller",
    "CredentialSet",
    "ExpiredToken",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "MissingAuthenticationToken",
    "SignatureDoesNotMatch",
    "Verifier",
    "open_caller",
]
