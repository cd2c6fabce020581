"""The files of `deploy/`: they start the service, and their alerts use metrics that exist."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.facade import Credentials
from compat_tests.node_process import NodeProcess, run_command

DEPLOY = Path(__file__).parent.parent / "deploy"
RULES = sorted((DEPLOY / "prometheus").glob("*.rules.yml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.*"))
SECRET = {
    "master-key": base64.b64encode(bytes(range(32))).decode(),
    "access-key-id": "AKIADEPLOYED",
    "secret-access-key": "a-secret-that-is-long-enough",
}


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def manifest(kind: str) -> dict[str, Any]:
    (found,) = (
        document
        for document in documents(DEPLOY / "kubernetes/holdfast.yaml")
        if document["kind"] == kind
    )
    return found


# -- Kubernetes ------------------------------------------------------------------------------------


def pod() -> dict[str, Any]:
    found: dict[str, Any] = manifest("StatefulSet")["spec"]["template"]["spec"]
    return found


def deployed(folder: Path, secret: dict[str, str]) -> NodeProcess:
    """The service as the pod starts it, with another port and with the volume in this folder."""
    (container,) = pod()["containers"]
    volume = folder / "volume"
    (volume / "lost+found").mkdir(parents=True)
    options = dict(zip(container["args"][2::2], container["args"][3::2], strict=True))
    assert options.pop("--host") == "0.0.0.0"
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "data")
    plain = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    data = volume / Path(plain.pop("HOLDFAST_DATA")).relative_to(mount["mountPath"])
    return NodeProcess(
        folder,
        *(word for option in options.items() for word in option),
        data=data,
        credentials=Credentials(secret["access-key-id"], secret["secret-access-key"], "us-east-1"),
        variables=plain
        | {
            each["name"]: secret[each["valueFrom"]["secretKeyRef"]["key"]]
            for each in container["env"]
            if "valueFrom" in each
        },
    )


def test_the_pod_answers_its_probes_and_its_first_access_key(tmp_path: Path) -> None:
    node = deployed(tmp_path, SECRET).start()
    try:
        (container,) = pod()["containers"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            with urlopen(node.url + container[probe]["httpGet"]["path"]) as answer:
                assert answer.status == 200
        client = Boto3Client(node.url, node.credentials)
        assert client.call("ListQueues") == {}
        client.close()
        assert "SECRET" not in node.output()
        assert not (node.data / "master.key").exists()
    finally:
        node.close()


def test_a_secret_that_was_not_filled_in_stops_the_start(tmp_path: Path) -> None:
    placeholders = manifest("Secret")["stringData"]
    assert placeholders.keys() == SECRET.keys()

    with pytest.raises(AssertionError, match="access_key_id"):
        deployed(tmp_path, placeholders).start()


def test_manifests_fit_together() -> None:
    service, stateful_set = manifest("Service"), manifest("StatefulSet")["spec"]
    (container,) = pod()["containers"]
    (port,) = container["ports"]
    labels = stateful_set["template"]["metadata"]["labels"]

    assert stateful_set["replicas"] == 1
    assert service["spec"]["selector"] == stateful_set["selector"]["matchLabels"] == labels
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    assert stateful_set["serviceName"] == service["metadata"]["name"]
    volumes = {each["name"] for each in pod()["volumes"]}
    volumes |= {each["metadata"]["name"] for each in stateful_set["volumeClaimTemplates"]}
    assert {each["name"] for each in container["volumeMounts"]} == volumes


def cron_jobs() -> list[dict[str, Any]]:
    found = documents(DEPLOY / "kubernetes/jobs.yaml")
    return [each["spec"]["jobTemplate"]["spec"]["template"]["spec"] for each in found]


@pytest.mark.parametrize("job", cron_jobs(), ids=lambda job: str(job["containers"][0]["name"]))
def test_the_jobs_have_commands_that_there_are(job: dict[str, Any]) -> None:
    (container,) = job["containers"]
    program, *words = container["command"]

    done = run_command(*words, *container["args"], "--help")  # also refuses unknown options

    assert program == "holdfast"
    assert (done.returncode, done.stderr) == (0, "")


def test_namespaces_with_the_restricted_profile_take_all_pods() -> None:
    manifests = documents(DEPLOY / "kubernetes/cluster.yaml")
    sets = [each for each in manifests if each["kind"] == "StatefulSet"]
    for found in [pod(), *(each["spec"]["template"]["spec"] for each in sets), *cron_jobs()]:
        (container,) = found["containers"]
        assert found["securityContext"]["runAsNonRoot"]
        assert found["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


# -- containers ------------------------------------------------------------------------------------


def test_compose_starts_what_the_image_does_and_asks_whether_it_is_ready(node: NodeProcess) -> None:
    (service,) = documents(DEPLOY / "compose.yaml")[0]["services"].values()
    dockerfile = (DEPLOY / "Dockerfile").read_text()

    assert f"CMD {service['command']}".replace("'", '"') in dockerfile
    assert f"VOLUME {service['volumes'][0].split(':')[1]}" in dockerfile
    _, _, option, program = service["healthcheck"]["test"]
    assert "127.0.0.1:9324" in program
    port = node.url.rsplit(":", 1)[1]
    for asked, healthy in ((port, True), ("1", False)):
        check = [sys.executable, option, program.replace("9324", asked)]
        done = subprocess.run(check, capture_output=True, check=False)
        assert (done.returncode == 0) is healthy, done.stderr


def test_what_the_image_copies_goes_to_the_builder() -> None:
    copied = re.findall(r"^COPY (.*\.lock) ", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    let_through = (DEPLOY.parent / ".dockerignore").read_text().splitlines()

    assert copied
    for name in copied[0].split():
        assert f"!{name}" in let_through


# -- systemd ---------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_units_are_valid(tmp_path: Path) -> None:
    copies = [tmp_path / unit.name for unit in UNITS]
    for unit, copy in zip(UNITS, copies, strict=True):
        program = str(Path(sys.executable).parent / "holdfast")
        if unit.is_dir():
            shutil.copytree(unit, copy)
            continue
        copy.write_text(unit.read_text().replace("/opt/holdfast/bin/holdfast", program))
    copies = [copy for copy in copies if copy.is_file()]

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, copies)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_starts_with_the_example_configuration(tmp_path: Path) -> None:
    unit = (DEPLOY / "systemd/holdfast.service").read_text()
    command = (
        "/opt/holdfast/bin/holdfast serve --config /etc/holdfast/holdfast.toml --data %S/holdfast"
    )
    assert f"ExecStart={command}\n" in unit

    node = NodeProcess(tmp_path, "--config", str(DEPLOY / "holdfast.example.toml"))
    node.start()
    node.stop()
