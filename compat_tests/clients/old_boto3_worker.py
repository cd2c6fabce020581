"""The process that runs the old boto3: pickled calls on standard input, pickled answers on output.

It runs as a plain script with only the old libraries on its path, and imports nothing of the tests.
A call is (number, operation, members); an answer (number, members, None) or (number, None,
botocore's error response). Calls run concurrently, so a long poll does not delay a send.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError


def main() -> None:
    """Serve calls until standard input ends; the arguments are endpoint, key id, secret, region."""
    endpoint, access_key_id, secret_access_key, region = sys.argv[1:]
    client = boto3.client(
        "sqs",
        endpoint_url=endpoint,
        aws_access_key_id=access_key_id,
        aws_secret_access_key=secret_access_key,
        region_name=region,
        config=Config(
            retries={"total_max_attempts": int(os.environ.get("COMPAT_ATTEMPTS", "1"))},
            read_timeout=30,
            max_pool_connections=50,
            parameter_validation=False,
        ),
    )
    protocol = client.meta.service_model.metadata["protocol"]
    methods = {operation: method for method, operation in client.meta.method_to_api_mapping.items()}
    writing = threading.Lock()

    def answer(reply: Any) -> None:
        with writing:
            pickle.dump(reply, sys.stdout.buffer)
            sys.stdout.buffer.flush()

    def serve(number: int, operation: str, members: dict[str, Any]) -> None:
        try:
            result = getattr(client, methods[operation])(**members)
        except ClientError as error:
            answer((number, None, error.response))
        except BaseException as error:
            answer((number, None, {"Crash": repr(error)}))
        else:
            answer((number, result, None))

    answer((0, {"protocol": protocol, "version": boto3.__version__}, None))
    with ThreadPoolExecutor(50) as pool:
        while True:
            try:
                call = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            pool.submit(serve, *call)


if __name__ == "__main__":
    main()
