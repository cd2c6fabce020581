"""Runs a day of the fleet at scale: `python -m cluster.tests.fleet.at_scale`."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from cluster.fleet import draft
from cluster.tests.fleet.at_scale.scale_run import RATIO_MAX, SMALL, Figures, Simulation, Size

ABOVE_MAX, CHANGED_MAX = 0.01, 0.01


def main() -> int:
    """Run, and print the figures beside what they must be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clusters", type=int, default=100)
    parser.add_argument("--queues", type=int, default=100_000)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--csv", type=Path, help="write the load of each hour into this file")
    parser.add_argument(
        "--explain", action="store_true", help="say what was asked where the ratio was too great"
    )
    parser.add_argument("--small", type=int, default=0, help="run so many small fleets instead")
    parser.add_argument(
        "--calm", type=int, help="seconds between changes of a queue: what do ten minutes cost?"
    )
    parser.add_argument(
        "--kept-hours", type=int, help="time for which a queue keeps its parts: do shrinks cost?"
    )
    given = parser.parse_args()
    if given.calm is not None:
        patch.object(draft, "CALM_MS", 1000 * given.calm).start()
    begun_s = time.process_time()
    if given.small:
        return _small(given.seed, given.small)
    size = Size(clusters=given.clusters, queues=given.queues, measured_s=given.hours * 3600)
    if given.kept_hours is not None:
        size = replace(size, kept_s=given.kept_hours * 3600)
    figures = Simulation(size, given.seed, explains=given.explain).run()
    print("\n".join(report(figures)))
    print(f"{time.process_time() - begun_s:.0f} s of CPU")
    if given.csv:
        rows = [f"{n},{mean:.3f},{most:.3f}" for n, (mean, most) in enumerate(figures.by_hour, 1)]
        given.csv.write_text("\n".join(["hour,mean,greatest", *rows, ""]))
    return 0 if holds(figures) else 1


def _small(first: int, count: int) -> int:
    failed = 0
    for seed in range(first, first + count):
        findings = Simulation(SMALL, seed).run().findings
        failed += bool(findings)
        for finding in findings[:3]:
            print(f"seed {seed}: {finding}")
    print(f"{count} seeds, {failed} failed")
    return 1 if failed else 0


def holds(figures: Figures) -> bool:
    """True if the run kept all that is asked of it."""
    return (
        figures.ratio(0.99) <= RATIO_MAX
        and figures.above <= ABOVE_MAX * figures.reports
        and figures.share_max <= CHANGED_MAX
        and not figures.findings
    )


def report(figures: Figures) -> list[str]:
    """Lines for people."""
    lines = [
        f"greatest / mean load of clusters over ten minutes: median {figures.ratio(0.5):.2f}, "
        f"p99 {figures.ratio(0.99):.2f}, greatest {max(figures.ratios):.2f} (at most {RATIO_MAX})",
        f"of {len(figures.ratios)} times {_above(figures)} were above it; {figures.not_counted} do "
        "not count, since a zone was lost and nothing may be changed",
        f"above 85 %: {figures.above / figures.reports:.3%} of the time (at most 1 %); with queues "
        f"that cannot be split {figures.above_all / figures.reports:.3%}",
        f"parts changed in ten minutes: at most {figures.share_max:.2%} of {figures.parts} "
        "(at most 1 %)",
        f"findings: {len(figures.findings)}",
        *figures.findings[:10],
        "changes:",
        *(f"  {count:6} {kind}" for kind, count in figures.kinds.most_common()),
        "refusals:",
        *(f"  {count:8} {kind}" for kind, count in figures.refusals.most_common()),
        "hour: mean, greatest",
    ]
    hours = enumerate(figures.by_hour, 1)
    lines += [f"  {hour:2}: {mean:.2f} {greatest:.2f}" for hour, (mean, greatest) in hours]
    return lines + figures.explained


def _above(figures: Figures) -> int:
    return sum(each > RATIO_MAX for each in figures.ratios)


if __name__ == "__main__":
    sys.exit(main())
