"""The boto3 that is installed with the tests: AWS JSON 1.0."""

from __future__ import annotations

import os
import threading
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError as BotocoreError
from botocore.exceptions import ParamValidationError as ParamValidationError
from botocore.model import OperationModel

from compat_tests.facade import Credentials, Members, error_of_botocore

CONFIG = {
    "retries": {"total_max_attempts": int(os.environ.get("COMPAT_ATTEMPTS", "1"))},
    "connect_timeout": 5,
    "read_timeout": 30,
    "max_pool_connections": 50,
    "parameter_validation": False,
}
"""No retries, so that each test sees the first answer, unless hosts are killed meanwhile; the
service validates parameters, not the client."""

_SESSION = boto3.session.Session()
"""It reads the models of SQS once, which takes longer than all else of a client."""
_MAKING = threading.Lock()


def connect(url: str, credentials: Credentials, **config: Any) -> Any:
    """A boto3 client of the service at this URL."""
    with _MAKING:
        return _SESSION.client(
            "sqs",
            endpoint_url=url,
            aws_access_key_id=credentials.access_key_id,
            aws_secret_access_key=credentials.secret_access_key,
            aws_session_token=credentials.session_token,
            region_name=credentials.region,
            config=Config(**{**CONFIG, **config}),
        )


class Boto3Client:
    """The facade over boto3."""

    name = "boto3"
    protocol = "json"

    def __init__(self, url: str, credentials: Credentials) -> None:
        self.client = connect(url, credentials)
        model = self.client.meta.service_model
        self._methods = {
            operation: method
            for method, operation in self.client.meta.method_to_api_mapping.items()
        }
        assert model.metadata["protocol"] == self.protocol, model.metadata

    def model(self, operation: str) -> OperationModel:
        """The action as the installed service model describes it."""
        return self.client.meta.service_model.operation_model(operation)

    def call(self, operation: str, **members: Any) -> Members:
        """Call the action and return the members of its answer; raises ClientError on a refusal."""
        try:
            answer: Members = getattr(self.client, self._methods[operation])(**members)
        except BotocoreError as error:
            raise error_of_botocore(error.response) from None
        answer.pop("ResponseMetadata")
        return answer

    def close(self) -> None:
        """Close the connections."""
        self.client.close()
