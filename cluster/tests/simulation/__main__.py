"""Runs seeds: `python -m cluster.tests.simulation --seeds 2000`, or one: `--seed 123`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial

from cluster.tests.replication import replica_run as replicas
from cluster.tests.simulation import cluster_run
from cluster.tests.simulation.simulated_run import Outcome, Shape, simulate
from storage.engines.store_options import Replication

_PROGRESS = 50


def main() -> int:
    """Run, and print the findings with the command that replays them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="replay this one, with its history")
    parser.add_argument("--flips", action="store_true", help="flip bits of the log")
    parser.add_argument("--cluster", action="store_true", help="a cluster with real shards instead")
    parser.add_argument("--fleet", action="store_true", help="two clusters of one fleet instead")
    parser.add_argument(
        "--gateway", action="store_true", help="two clusters and a gateway without etcd instead"
    )
    parser.add_argument(
        "--older-etcd", action="store_true", help="restore older snapshots of etcd instead"
    )
    parser.add_argument("--replicas", action="store_true", help="a cluster of replicas instead")
    parser.add_argument(
        "--replication", choices=list(Replication), default="sync", help="of a cluster with shards"
    )
    given = parser.parse_args()
    run = _run_of(given)
    if given.seed is not None:
        outcome = run(given.seed)
        print("\n".join(outcome.lines))
        print(f"seed {given.seed}: {outcome.summary}\ndigest {outcome.digest}")
        return 1 if outcome.findings else 0
    failed = 0
    begun_s = time.process_time()
    lives = 0
    for number in range(given.seeds):
        seed = given.first + number
        outcome = run(seed)
        lives += outcome.lives
        if outcome.findings:
            failed += 1
            kind = " ARGS=--replicas" * given.replicas + " ARGS=--cluster" * given.cluster
            kind += " ARGS=--fleet" * given.fleet + " ARGS=--flips" * given.flips
            kind += " ARGS=--older-etcd" * given.older_etcd + " ARGS=--gateway" * given.gateway
            again = f"make simulate SEED={seed}{kind}"
            if given.replication == "async":
                again = f'make simulate SEED={seed} ARGS="--cluster --replication async"'
            print(f"seed {seed} failed: {outcome.findings[0]}; replay: {again}")
        if (number + 1) % _PROGRESS == 0 or number + 1 == given.seeds:
            spent_s = time.process_time() - begun_s
            print(
                f"{number + 1} seeds, {lives} lives, {failed} failed, {spent_s / (number + 1):.3f} "
                "s of CPU a seed",
                flush=True,
            )
    return 1 if failed else 0


def _run_of(given: argparse.Namespace) -> Callable[[int], Outcome | replicas.Outcome]:
    if given.replicas:
        return replicas.simulate
    if given.cluster:
        return partial(cluster_run.simulate, replication=Replication(given.replication))
    if given.older_etcd:
        return lambda seed: cluster_run.simulate(seed, cluster_run.older_etcd_shape(seed))
    if given.gateway:
        return lambda seed: cluster_run.simulate(seed, cluster_run.gateway_shape(seed))
    if given.fleet:
        return lambda seed: cluster_run.simulate(seed, cluster_run.fleet_shape(seed))
    return partial(simulate, shape=Shape(flips=True) if given.flips else None)


if __name__ == "__main__":
    sys.exit(main())
