"""The process that runs aioboto3, which pins an older botocore than boto3 has now.

It runs as a plain script with only aioboto3's libraries on its path. It starts many long polls at
once, sends one message for each from the same loop, and prints one line of JSON: ids sent and
received.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import aioboto3
from botocore.config import Config


async def poll(client: Any, url: str) -> str:
    """One long poll that takes one message and deletes it; returns the message's id."""
    answer = await client.receive_message(QueueUrl=url, WaitTimeSeconds=20)
    (message,) = answer["Messages"]
    await client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return str(message["MessageId"])


async def run(url: str, polls: int, client: Any) -> dict[str, Any]:
    """Park the polls, send, and wait for each."""
    waiting = [asyncio.create_task(poll(client, url)) for _ in range(polls)]
    await asyncio.sleep(1.0)
    early = sum(task.done() for task in waiting)
    sends = [client.send_message(QueueUrl=url, MessageBody=str(n)) for n in range(polls)]
    sent = [answer["MessageId"] for answer in await asyncio.gather(*sends)]
    received = await asyncio.gather(*waiting)
    return {"early": early, "sent": sent, "received": received}


async def main() -> None:
    """The arguments are endpoint, key id, secret, region, queue URL, number of polls."""
    endpoint, access_key_id, secret_access_key, region, url, polls = sys.argv[1:]
    session = aioboto3.Session(
        aws_access_key_id=access_key_id,
        aws_secret_access_key=secret_access_key,
        region_name=region,
    )
    config = Config(
        max_pool_connections=2 * int(polls),
        read_timeout=30,
        retries={"total_max_attempts": int(os.environ.get("COMPAT_ATTEMPTS", "1"))},
    )
    async with session.client("sqs", endpoint_url=endpoint, config=config) as client:
        sys.stdout.write(json.dumps(await run(url, int(polls), client)) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
