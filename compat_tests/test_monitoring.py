"""The rules and dashboards of `deploy/`: they use metrics that exist, and a real Prometheus reads
them."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import boto3
import pytest
import yaml

from compat_tests.made_certificates import Authority
from compat_tests.node_process import NodeProcess, run_command
from compat_tests.prometheus_process import Prometheus, program

CHECKOUT = Path(__file__).parent.parent
DEPLOY = CHECKOUT / "deploy"
RULES = sorted((DEPLOY / "prometheus").glob("*.rules.yml"))
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
OF_A_CLUSTER = re.compile(r"holdfast_(replica|peer|outbox|manager|cluster|parts_unheard)_|etcd_")
"""Metrics that a single host lacks: `test_cluster.py` and `test_fleet_plan.py` look for them."""
_NAMES = re.compile(r"\b((?:holdfast|process|etcd)_\w+)(?:\{([^}]*)\})?")
_MATCHERS = re.compile(r'(\w+)(=~|=)"([^"]*)"')
_UNTIL_THEY_HAPPEN = ("job", "code", "event", "instance", "account", "queue", "status")
"""Labels whose values exist once something happened."""


def alerts(path: Path) -> Iterator[tuple[str, str]]:
    """Name and expression of each alert of a file."""
    for group in yaml.safe_load(path.read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["summary"]
            assert rule["labels"]["severity"] in {"info", "warning", "critical"}
            yield rule["alert"], rule["expr"]


def queries(path: Path) -> Iterator[tuple[str, str]]:
    """Title and expression of each query of a dashboard, with every variable's default."""
    content = json.loads(path.read_text())
    variables = {each["name"] for each in content["templating"]["list"]}
    for panel in content["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "1m")
            for name in variables:
                expression = expression.replace(f"${name}", ".*")
            assert "$" not in expression, expression
            yield panel["title"], expression


EXPRESSIONS = [
    pytest.param(title, expression, id=f"{path.stem}: {title}")
    for path in (*RULES, *DASHBOARDS)
    for title, expression in (alerts(path) if path.suffix == ".yml" else queries(path))
]


class Monitored:
    """A service that has every metric of a single host, and was used."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        pair = authority.sign("server")
        tls = ("--tls-certificate", str(pair.certificate), "--tls-key", str(pair.key))
        self.authority = authority.file
        self.node = NodeProcess(folder, *tls, "--lake", str(folder / "lake")).start()
        self.client = boto3.client(
            "sqs",
            endpoint_url=self.node.url,
            verify=str(authority.file),
            region_name=self.node.credentials.region,
            aws_access_key_id=self.node.credentials.access_key_id,
            aws_secret_access_key=self.node.credentials.secret_access_key,
        )

    def use(self) -> None:
        """Traffic, a dead letter, a refused key, a group in flight."""
        client = self.client
        given = {"KmsMasterKeyId": "alias/unknown"}
        unusable = client.create_queue(QueueName="unusable", Attributes=given)["QueueUrl"]
        with pytest.raises(client.exceptions.ClientError, match=r"KMS\.NotFoundException"):
            client.send_message(QueueUrl=unusable, MessageBody="x")
        client.create_queue(QueueName="dead")
        policy = {
            "deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:dead",
            "maxReceiveCount": 1,
        }
        redriven = {"RedrivePolicy": json.dumps(policy), "VisibilityTimeout": "0"}
        queue = client.create_queue(QueueName="q", Attributes=redriven)["QueueUrl"]
        client.send_message(QueueUrl=queue, MessageBody="x")
        for _ in range(3):
            client.receive_message(QueueUrl=queue)
        ever = {"FifoQueue": "true", "VisibilityTimeout": "43200"}  # in flight until the end
        ordered = client.create_queue(QueueName="o.fifo", Attributes=ever)
        for body in "ab":
            client.send_message(
                QueueUrl=ordered["QueueUrl"],
                MessageBody=body,
                MessageGroupId=body,
                MessageDeduplicationId=body,
            )
        received = client.receive_message(QueueUrl=ordered["QueueUrl"])["Messages"]
        handle = received[0]["ReceiptHandle"]
        client.receive_message(QueueUrl=ordered["QueueUrl"])
        client.delete_message(QueueUrl=ordered["QueueUrl"], ReceiptHandle=handle)

    def page(self, path: str) -> str:
        """A page that needs no signature."""
        context = ssl.create_default_context(cafile=self.authority)
        with urlopen(self.node.url + path, context=context) as answer:
            text: str = answer.read().decode()
        return text


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    service = Monitored(tmp_path_factory.mktemp("monitored"))
    service.use()
    yield service
    service.client.close()
    service.node.close()


@pytest.fixture(scope="module")
def page(monitored: Monitored) -> str:
    """The metrics for operators."""
    return monitored.page("/_holdfast/metrics")


@pytest.fixture(scope="module")
def owners_page(monitored: Monitored) -> str:
    """The metrics for the owner of the account."""
    printed = run_command("metrics", "--data", str(monitored.node.data))
    assert printed.returncode == 0, printed.stderr
    return printed.stdout


@pytest.fixture(scope="module")
def prometheus(
    monitored: Monitored, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    with Prometheus(folder, monitored.node.url, monitored.authority, RULES) as running:
        yield running


def missing(expression: str, page: str) -> list[str]:
    """The metrics and values of labels in an expression that a page lacks."""
    found: list[str] = []
    for name, matchers in _NAMES.findall(expression):
        samples = re.findall(rf"^{name}(?:\{{.*\}})? ", page, re.MULTILINE)
        if not samples and f"# TYPE {name.removesuffix('_total')}" not in page:
            found.append(name)
        for label, _, pattern in _MATCHERS.findall(matchers):
            values = pattern.split("|") if label not in _UNTIL_THEY_HAPPEN else ()
            named = [f'{label}="{value}"' for value in values]
            found += [
                f"{name} with {each}"
                for each in named
                if not any(each in sample for sample in samples)
            ]
    return found


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_rules_and_dashboards_use_metrics_that_there_are(
    title: str, expression: str, page: str
) -> None:
    assert [name for name in missing(expression, page) if not OF_A_CLUSTER.match(name)] == []


def test_the_owners_dashboard_needs_no_other_page_than_theirs(owners_page: str) -> None:
    for title, expression in queries(DEPLOY / "grafana/owners.json"):
        assert missing(expression, owners_page) == [], title


def test_a_first_refusal_makes_a_series(page: str) -> None:
    assert re.search(r'holdfast_refusals_total\{code="KMS[.].*"\} 1', page)


def test_alerts_name_events_that_the_source_logs() -> None:
    packages = ("sqs_api", "cluster", "storage", "visibility")
    source = "".join(
        path.read_text()
        for package in packages
        for path in (CHECKOUT / package).rglob("*.py")
        if "tests" not in path.relative_to(CHECKOUT).parts
    )
    logged = re.compile(r'log_events_total\{event=~?"([^"]*)"')

    named = {
        event
        for path in RULES
        for _, expression in alerts(path)
        for pattern in logged.findall(expression)
        for event in pattern.split("|")
    }
    assert named
    assert {event for event in named if f'"{event}"' not in source} == set()


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_each_alert_is_tried(path: Path) -> None:
    tests = yaml.safe_load(path.with_suffix("").with_suffix(".rules.test.yml").read_text())
    tried = {
        sample["labels"].split('"')[1]
        for test in tests["tests"]
        for expected in test.get("promql_expr_test", ())
        for sample in expected["exp_samples"]
    }
    tried |= {
        each["alertname"] for test in tests["tests"] for each in test.get("alert_rule_test", ())
    }

    assert tried == {name for name, _ in alerts(path)}


def promtool(*arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run promtool beside the rules."""
    return subprocess.run(
        [program("promtool"), *arguments],
        cwd=DEPLOY / "prometheus",
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )


def test_alerts_come_when_they_should() -> None:
    names = [path.name for path in RULES]
    checked = promtool("check", "rules", *names)
    tested = promtool("test", "rules", *(name.replace("rules.", "rules.test.") for name in names))

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("name", ["page", "owners_page"])
def test_the_exposition_is_as_prometheus_wants_it(
    name: str, request: pytest.FixtureRequest
) -> None:
    checked = promtool("check", "metrics", given=request.getfixturevalue(name))

    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_prometheus_evaluates_every_rule(prometheus: Prometheus) -> None:
    rules = prometheus.rules()

    assert {rule["name"] for rule in rules} == {name for path in RULES for name, _ in alerts(path)}
    assert [rule for rule in rules if rule["health"] != "ok"] == []
    raised = {each["metric"]["alertname"] for each in prometheus.query("ALERTS")}
    assert {"HoldfastKeyUnusable", "HoldfastDeadLetters"} <= raised


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_each_query_of_a_dashboard_is_answered(path: Path, prometheus: Prometheus) -> None:
    empty = {
        title
        for title, expression in queries(path)
        if not prometheus.query(expression)
        and not OF_A_CLUSTER.search(expression)
        and "holdfast_log_events_total" not in expression  # nothing went wrong
    }

    assert empty == set()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_panels_do_not_overlap_and_variables_find_values(
    path: Path, prometheus: Prometheus
) -> None:
    content: dict[str, Any] = json.loads(path.read_text())
    taken: set[tuple[int, int]] = set()
    for panel in content["panels"]:
        place = panel["gridPos"]
        fields = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not fields & taken, panel["title"]
        assert max(x for x, _ in fields) < 24
        taken |= fields
    assert len({panel["id"] for panel in content["panels"]}) == len(content["panels"])
    for variable in content["templating"]["list"]:
        found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"])
        if variable["type"] == "query":
            assert found is not None
            assert prometheus.query(f'{found[1]}{{{found[2]}!=""}}'), variable
