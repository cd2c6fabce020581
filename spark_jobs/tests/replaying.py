"""The sending part of a replay as a process that a test can kill: LAKE URL ARN COUNT.

The archive has the messages m-0, m-1 and so on, in five groups.
"""

from __future__ import annotations

import sys

import boto3

from spark_jobs.replay.ledger import Ledger, Named
from spark_jobs.replay.replay import Sending, Tally, new_run, send_all
from spark_jobs.replay.replay_claim import Claim
from spark_jobs.replay.sending import Destination, Message, Rate
from storage.lake.archive_schema import row_checksum
from storage.lake.table import Lake

FOLDER = "replays/orders/default"


def message(position: int) -> Message:
    body, message_id = f"m-{position}", f"id-{position}"
    checksum = row_checksum(message_id, body.encode(), b"")
    name = Named("data-1", 0, position)
    return Message(name, message_id, body, {}, None, f"g-{position % 5}", checksum)


def remembered(lake: Lake) -> set[Named]:
    """The content of the ledger."""
    return {Named(*row.values()) for row in Ledger(lake, FOLDER, "reader").read().to_pylist()}


def main(url: str, queue_url: str, arn: str, count: str) -> None:
    """Send the messages that the ledger lacks."""
    lake = Lake(url)
    run = new_run()
    origin = queue_url.rsplit("/", 2)[0]
    destination = Destination(boto3.client("sqs", endpoint_url=origin), queue_url, arn)
    ledger = Ledger(lake, FOLDER, run, merge_every=4)
    with Claim(lake, f"{FOLDER}/claims", run) as claim:
        known = remembered(lake)
        wanted = [message(position) for position in range(int(count))]
        to_send = [each for each in wanted if each.name not in known]
        sending = Sending(destination, ledger, claim, Rate(None), "default", sys.exit)
        send_all(to_send, sending, Tally())
        ledger.merge()


if __name__ == "__main__":
    main(*sys.argv[1:])
