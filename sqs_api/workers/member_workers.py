"""The workers of a host of a cluster: each is a host of the fleet, with a name, a peer port and a
data folder of its own. The first one has those that the settings say.

    worker    name          peer port    data folder
    1         a             9325         DATA
    2         a.worker-2    9326         DATA/worker-2
"""

from __future__ import annotations

import re
from pathlib import Path

from cluster.peers.peer_settings import process_name
from sqs_api.settings.cluster_settings import split_address, split_list
from sqs_api.settings.config import SHARDS_MAX, Settings, workers_of
from sqs_api.workers.given_settings import shares

_FOLDER = re.compile(r"worker-([1-9][0-9]?)")


def workers_there(settings: Settings) -> int:
    """The number of workers to start: what the settings say, but one for each that has a data
    folder, since its shards count."""
    asked = workers_of(settings)
    if settings.etcd is None:
        return asked
    try:
        found = [_FOLDER.fullmatch(each.name) for each in settings.data.iterdir()]
    except OSError:  # it is not made yet
        return asked
    numbers = [int(each[1]) for each in found if each is not None]
    return max(asked, *(each for each in numbers if each <= SHARDS_MAX), 0)


def folder_of(data: Path, number: int) -> Path:
    """The data folder of a worker; workers are numbered from 0 on."""
    return data / f"worker-{number + 1}" if number else data


def settings_of_worker(settings: Settings, number: int, workers: int) -> Settings:
    """The settings of one of the workers of a member of a cluster. The first one makes what is
    declared."""
    own = shares(settings, workers)
    if number:
        hosts = [process_name(each, number) for each in split_list(settings.cluster_hosts)]
        assert settings.host_name is not None
        own |= {
            "data": folder_of(settings.data, number),
            "host_name": process_name(settings.host_name, number),
            "peer_address": _later(settings.peer_address, number),
            "peer_listen": _later(settings.peer_listen, number),
            "cluster_hosts": ",".join(hosts) or None,
            "queues": (),
            "users": (),
            "access_key_id": None,
            "secret_access_key": None,
        }
    return settings.model_copy(update=own)


def _later(address: str | None, ports: int) -> str | None:
    """The address with a later port."""
    if address is None:
        return None
    _, port = split_address(address)
    return f"{address.rpartition(':')[0]}:{port + ports}"
