"""The dashboards of `deploy/grafana`: panels say what they show, links lead somewhere.

That their metrics exist is tested in `test_monitoring.py`.
"""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parent.parent
RUNBOOK = (CHECKOUT / "deploy/runbook.md").read_text()
SCREENS = (CHECKOUT / "sqs_api/console/static/main.js").read_text()
DASHBOARDS = {
    path.stem: json.loads(path.read_text())
    for path in sorted((CHECKOUT / "deploy/grafana").glob("*.json"))
}
EACH = pytest.mark.parametrize("board", DASHBOARDS.values(), ids=DASHBOARDS)
SCHEMA = 39
KINDS = {"row", "stat", "table", "heatmap", "timeseries"}
VARIABLE = re.compile(r"\$\{?(\w+)")
OWN = {"__all", "__field", "__rate_interval", "__value"}
"""Variables of Grafana itself."""


def addresses(value: Any) -> list[str]:
    """All `url` in a part of a dashboard."""
    if isinstance(value, dict):
        found = [each for key, each in value.items() if key == "url"]
        return found + [each for part in value.values() for each in addresses(part)]
    if isinstance(value, list):
        return [each for part in value for each in addresses(part)]
    return []


@EACH
def test_a_dashboard_has_numbers_a_table_and_a_sentence_for_each_panel(board: Any) -> None:
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]

    assert board["schemaVersion"] == SCHEMA
    assert {panel["type"] for panel in panels} <= KINDS
    assert {"stat", "table", "timeseries"} <= {panel["type"] for panel in panels}
    silent = [each["title"] for each in panels if not each.get("description", "").endswith(".")]
    assert silent == []


def test_latencies_are_a_heat_map_of_buckets() -> None:
    (shown,) = [each for each in DASHBOARDS["operators"]["panels"] if each["type"] == "heatmap"]
    (target,) = shown["targets"]

    assert target["format"] == "heatmap"
    assert "by (le)" in target["expr"]
    assert "_bucket" in target["expr"]
    assert shown["options"]["calculate"] is False


@EACH
def test_panels_have_a_place_of_their_own(board: Any) -> None:
    ids = [panel["id"] for panel in board["panels"]]
    places = [panel["gridPos"] for panel in board["panels"]]

    assert len(ids) == len(set(ids))
    assert all(at["x"] >= 0 and at["x"] + at["w"] <= 24 for at in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)


@EACH
def test_a_table_names_the_columns_of_its_queries(board: Any) -> None:
    for panel in board["panels"]:
        if panel["type"] != "table":
            continue
        named = next(each for each in panel["transformations"] if each["id"] == "organize")
        renamed = named["options"]["renameByName"]
        shown = {f"Value #{target['refId']}" for target in panel["targets"]}
        overridden = {each["matcher"]["options"] for each in panel["fieldConfig"]["overrides"]}

        assert shown <= renamed.keys()
        assert overridden <= set(renamed.values())
        assert {each["displayName"] for each in panel["options"]["sortBy"]} <= set(renamed.values())
        assert all(each["format"] == "table" and each["instant"] for each in panel["targets"])


@EACH
def test_links_lead_to_screens_and_dashboards_that_there_are(board: Any) -> None:
    links = addresses(board)
    routes = re.findall(r'^  \["(/[a-z-]+)"', SCREENS, re.MULTILINE)

    assert {"Console", "Dead letters", "Redrives", "Runbook"} <= {
        each["title"] for each in board["links"]
    }
    for link in links:
        place = link.partition("/console#")[2].partition("?")[0]
        assert not place or place.startswith("/queues/") or place in routes, link
        if link.startswith("/d/"):
            assert link.removeprefix("/d/") in {each["uid"] for each in DASHBOARDS.values()}


@EACH
def test_each_panel_leads_to_the_console_and_to_the_runbook(board: Any) -> None:
    titles = re.findall(r"^#+ (.+)$", RUNBOOK, re.MULTILINE)
    anchors = {"", *(f"#{each.lower().replace(' ', '-')}" for each in titles)}
    for panel in board["panels"]:
        if panel["type"] != "row":
            console, runbook = (each["url"] for each in panel["links"])
            assert console.startswith("${console:raw}/_holdfast/console#/"), panel["title"]
            assert runbook.removeprefix("${runbook:raw}") in anchors, panel["title"]


@EACH
def test_a_line_of_a_queue_leads_to_the_queue(board: Any) -> None:
    for panel in board["panels"]:
        if panel["type"] == "timeseries" and "{{queue}}" in json.dumps(panel["targets"]):
            links = panel["fieldConfig"]["defaults"]["links"]
            assert links[0]["url"].endswith("#/queues/${__field.labels.queue}"), panel["title"]


@EACH
def test_variables_are_declared(board: Any) -> None:
    declared = {each["name"] for each in board["templating"]["list"]}
    used = set(VARIABLE.findall(json.dumps(board))) - OWN

    assert used == declared
