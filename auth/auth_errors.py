"""Refused signatures, under AWS's names. `sqs_api/protocol/error_codes.py` gives their form on the
wire."""

from __future__ import annotations


class AuthError(Exception):
    """A request without a valid signer. `message` goes to the client unchanged, `code` is AWS's."""

    code = ""
    default_message = ""

    def __init__(self, message: str | None = None) -> None:
        self.message = self.default_message if message is None else message
        super().__init__(self.message)


class MissingAuthenticationToken(AuthError):
    """The request is not signed."""

    code = "MissingAuthenticationToken"
    default_message = "Request is missing Authentication Token"


class IncompleteSignature(AuthError):
    """The Authorization header or the presigned query lacks a part or cannot be read."""

    code = "IncompleteSignature"


class InvalidClientTokenId(AuthError):
    """The access key id, or the session token, is unknown, disabled or expired."""

    code = "InvalidClientTokenId"
    default_message = "The security token included in the request is invalid."


class ExpiredToken(AuthError):
    """The temporary key has expired."""

    code = "ExpiredToken"
    default_message = "The security token included in the request is expired"


class SignatureDoesNotMatch(AuthError):
    """The signature, its date or its scope is wrong."""

    code = "SignatureDoesNotMatch"
    default_message = (
        "The request signature we calculated does not match the signature you provided. "
        "Check your AWS Secret Access Key and signing method. Consult the service documentation "
        "for details."
    )


class SessionEnded(AuthError):
    """The session of a browser that was signed in has ended."""

    code = "SessionEnded"
    default_message = "Your session has ended: sign in again."


class AccessDenied(AuthError):
    """The signer is known and may not do this."""

    code = "AccessDenied"
