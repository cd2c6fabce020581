"""CloudWatch's calls for AWS/SQS, by boto3 in each of its protocols, by `aws`, and as KEDA makes
them."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import botocore
import botocore.session
import pytest
from botocore.exceptions import ClientError

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.facade import Credentials

pytestmark = pytest.mark.skipif(
    "COMPAT_ENDPOINT" in os.environ, reason="AWS has its metrics minutes later"
)
MODEL = Path("cloudwatch/2010-08-01/service-2.json")
STATISTICS = ["SampleCount", "Average", "Sum", "Minimum", "Maximum"]


def model_of(protocol: str, folder: Path) -> Path:
    """A folder with botocore's own model of CloudWatch, which names one protocol alone."""
    own = Path(botocore.__file__).parent / "data" / MODEL
    packed = own.with_suffix(".json.gz")
    text = gzip.decompress(packed.read_bytes()) if packed.exists() else own.read_bytes()
    content = json.loads(text)
    assert protocol in content["metadata"]["protocols"]
    content["metadata"] |= {"protocol": protocol, "protocols": [protocol]}
    made = folder / MODEL
    made.parent.mkdir(parents=True)
    made.write_text(json.dumps(content))
    return folder


def client_of(endpoint: str, credentials: Credentials, models: Path | None = None) -> Any:
    session = botocore.session.get_session()
    if models is not None:
        session.get_component("data_loader").search_paths.insert(0, str(models))
    return boto3.Session(
        botocore_session=session,
        aws_access_key_id=credentials.access_key_id,
        aws_secret_access_key=credentials.secret_access_key,
        region_name=credentials.region,
    ).client("cloudwatch", endpoint_url=endpoint)


@pytest.fixture(scope="module", params=["smithy-rpc-v2-cbor", "boto3's choice", "query"])
def cloudwatch(
    request: pytest.FixtureRequest,
    endpoint: str,
    credentials: Credentials,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    """boto3's client in one protocol."""
    models = None
    if request.param != "boto3's choice":
        models = model_of(request.param, tmp_path_factory.mktemp("models"))
    client = client_of(endpoint, credentials, models)
    spoken = client.meta.service_model.resolved_protocol
    assert spoken == ("json" if models is None else request.param)
    yield client
    client.close()


def used(current: Boto3Client, url: str) -> str:
    """The name of a queue with two messages, of which one is in flight."""
    for body in ("a", "bbb"):
        current.call("SendMessage", QueueUrl=url, MessageBody=body)
    current.call("ReceiveMessage", QueueUrl=url)
    return url.rsplit("/", 1)[1]


def window() -> dict[str, datetime]:
    """The last minutes, with the one under way."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    return {"StartTime": now - timedelta(minutes=5), "EndTime": now + timedelta(minutes=1)}


def data_query(name: str, metric: str, stat: str, id_: str = "m") -> dict[str, Any]:
    dimensions = [{"Name": "QueueName", "Value": name}]
    asked = {"Namespace": "AWS/SQS", "MetricName": metric, "Dimensions": dimensions}
    return {"Id": id_, "MetricStat": {"Metric": asked, "Period": 600, "Stat": stat}}


def test_statistics_of_a_metric(cloudwatch: Any, current: Boto3Client, queue: str) -> None:
    name = used(current, queue)

    def statistics(metric: str) -> list[dict[str, Any]]:
        answer = cloudwatch.get_metric_statistics(
            Namespace="AWS/SQS",
            MetricName=metric,
            Dimensions=[{"Name": "QueueName", "Value": name}],
            Period=600,
            Statistics=STATISTICS,
            **window(),
        )
        assert answer["Label"] == metric
        return [dict(point) for point in answer["Datapoints"]]

    (size,) = statistics("SentMessageSize")
    assert size.pop("Timestamp").tzinfo is not None
    assert (size["SampleCount"], size["Sum"], size["Average"]) == (2, 4, 2)
    assert size["Unit"] == "Bytes"
    assert [point["Sum"] for point in statistics("NumberOfMessagesSent")] == [2]
    assert [point["Maximum"] for point in statistics("ApproximateNumberOfMessagesVisible")] == [1]
    assert statistics("NumberOfDeduplicatedSentMessages") == []


def test_data_of_several_metrics(cloudwatch: Any, current: Boto3Client, queue: str) -> None:
    name = used(current, queue)
    asked = {
        "ApproximateNumberOfMessagesNotVisible": 1,
        "NumberOfMessagesReceived": 1,
        "NumberOfMessagesDeleted": 0,
        "NumberOfEmptyReceives": 0,
    }
    queries = [
        data_query(name, metric, "Maximum", f"m{number}") for number, metric in enumerate(asked)
    ]
    queries += [data_query("no-such-queue", "NumberOfMessagesSent", "Sum", "none")]
    queries[1]["Label"] = "received"

    answer = cloudwatch.get_metric_data(MetricDataQueries=queries, **window())

    *found, none = answer["MetricDataResults"]
    assert [result["Values"] for result in found] == [[value] for value in asked.values()]
    assert [result["Label"] for result in found][1:3] == ["received", "NumberOfMessagesDeleted"]
    assert {result["StatusCode"] for result in found} == {"Complete"}
    assert all(result["Timestamps"][0].tzinfo is not None for result in found)
    assert (none["Values"], none["Timestamps"]) == ([], [])


def test_metrics_are_listed(
    cloudwatch: Any, current: Boto3Client, make_queue: Callable[..., str]
) -> None:
    name = used(current, make_queue())
    ordered = make_queue_of_groups(current, name)
    idle = make_queue().rsplit("/", 1)[1]

    def metrics(queue: str, **filters: Any) -> set[str]:
        given = {"Dimensions": [{"Name": "QueueName", "Value": queue}], **filters}
        pages = cloudwatch.get_paginator("list_metrics").paginate(Namespace="AWS/SQS", **given)
        return {metric["MetricName"] for page in pages for metric in page["Metrics"]}

    assert {"SentMessageSize", "ApproximateAgeOfOldestMessage"} <= metrics(name)
    assert "NumberOfDeduplicatedSentMessages" in metrics(ordered) - metrics(name)
    assert metrics(name, RecentlyActive="PT3H") == metrics(name)
    assert metrics(name, MetricName="SentMessageSize") == {"SentMessageSize"}
    assert metrics(idle) == set()
    assert cloudwatch.list_metrics(Namespace="AWS/EC2")["Metrics"] == []


def make_queue_of_groups(current: Boto3Client, name: str) -> str:
    made = current.call(
        "CreateQueue", QueueName=f"{name[:70]}.fifo", Attributes={"FifoQueue": "true"}
    )
    current.call(
        "SendMessage",
        QueueUrl=made["QueueUrl"],
        MessageBody="x",
        MessageGroupId="g",
        MessageDeduplicationId="d",
    )
    return f"{name[:70]}.fifo"


@pytest.mark.parametrize(
    ("call", "members", "code", "part"),
    [
        ("get_metric_data", {"MetricDataQueries": [{"Id": "e", "Expression": "1"}]},
         "ValidationError", "expressions"),
        ("get_metric_data", {"MetricDataQueries": [data_query("q", "X", "p99")]},
         "ValidationError", "p99"),
        ("get_metric_data", {"MetricDataQueries": [data_query("q", "X", "Sum", "Upper")]},
         "ValidationError", "Upper"),
        ("get_metric_data", {"MetricDataQueries": [data_query("q", "X", "Sum")] * 2},
         "ValidationError", "unique"),
        ("get_metric_statistics",
         {"Namespace": "AWS/SQS", "MetricName": "X", "Period": 61, "Statistics": ["Sum"]},
         "InvalidParameterValue", "Period"),
        ("get_metric_statistics",
         {"Namespace": "AWS/SQS", "MetricName": "X", "Period": 60, "Statistics": ["Sum"],
          "StartTime": datetime(2020, 1, 1, tzinfo=UTC)},
         "InvalidParameterCombination", "1,440"),
        ("get_metric_statistics", {"Namespace": "AWS/SQS", "MetricName": "X", "Period": 60},
         "MissingParameter", "Statistics"),
        ("describe_alarms", {}, "InvalidAction", "DescribeAlarms"),
    ],
)  # fmt: skip
def test_refusals_have_cloudwatchs_codes(
    cloudwatch: Any, call: str, members: dict[str, Any], code: str, part: str
) -> None:
    given = window() | members if call.startswith("get") else members
    with pytest.raises(ClientError, match=part) as refused:
        getattr(cloudwatch, call)(**given)

    assert refused.value.response["Error"]["Code"] == code
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


def test_keda_finds_the_value_to_scale_by(
    cloudwatch: Any, current: Boto3Client, queue: str
) -> None:
    """The call of its aws-cloudwatch scaler, with a window that ends with a period."""
    name = used(current, queue)
    period_s = 60
    now_s = int(datetime.now(UTC).timestamp())
    end = datetime.fromtimestamp(now_s // period_s * period_s + period_s, UTC)
    query = data_query(name, "ApproximateNumberOfMessagesVisible", "Average", "c1")
    query["MetricStat"] |= {"Period": period_s, "Unit": "Count"}

    answer = cloudwatch.get_metric_data(
        StartTime=end - timedelta(seconds=300),
        EndTime=end,
        ScanBy="TimestampDescending",
        MetricDataQueries=[query | {"ReturnData": True}],
    )

    assert answer["MetricDataResults"][0]["Values"][0] == 1


def test_the_command_line_shows_statistics(
    endpoint: str, credentials: Credentials, current: Boto3Client, queue: str
) -> None:
    name = used(current, queue)
    times = window()
    program = Path(sys.executable).with_name("aws")
    done = subprocess.run(
        [
            *(sys.executable, str(program), "cloudwatch", "get-metric-statistics"),
            *("--endpoint-url", endpoint, "--output", "json"),
            *("--namespace", "AWS/SQS", "--metric-name", "NumberOfMessagesSent"),
            *("--dimensions", f"Name=QueueName,Value={name}", "--period", "600"),
            *("--start-time", times["StartTime"].isoformat()),
            *("--end-time", times["EndTime"].isoformat(), "--statistics", "Sum", "SampleCount"),
        ],
        env={
            "PATH": os.environ["PATH"],
            "HOME": os.devnull,
            "AWS_ACCESS_KEY_ID": credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": credentials.secret_access_key,
            "AWS_DEFAULT_REGION": credentials.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    (point,) = json.loads(done.stdout)["Datapoints"]
    assert (point["Sum"], point["Unit"]) == (2.0, "Count")
