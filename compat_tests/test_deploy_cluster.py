"""The cluster's files in `deploy/`: their hosts have settings that the service takes."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from compat_tests.node_process import run_command

DEPLOY = Path(__file__).parent.parent / "deploy"
SECRET = {
    "master-key": base64.b64encode(bytes(range(32))).decode(),
    "access-key-id": "AKIADEPLOYED",
    "secret-access-key": "a-secret-that-is-long-enough",
}
REQUIRED = {
    "HOLDFAST_MASTER_KEY": SECRET["master-key"],
    "HOLDFAST_ACCESS_KEY_ID": SECRET["access-key-id"],
    "HOLDFAST_SECRET_ACCESS_KEY": SECRET["secret-access-key"],
    "ETCD_IMAGE": "etcd",
}
"""Variables without which the compose file is refused."""


def documents(file: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((DEPLOY / file).read_text()) if each]


def manifests(kind: str) -> dict[str, dict[str, Any]]:
    found = documents("kubernetes/cluster.yaml")
    return {each["metadata"]["name"]: each for each in found if each["kind"] == kind}


def filled_in(variables: dict[str, str]) -> dict[str, str]:
    """As `docker compose` does it."""
    return {
        name: re.sub(r"\$\{(\w+):\?\}", lambda found: REQUIRED[found[1]], value)
        for name, value in variables.items()
    }


def compose_hosts() -> Iterator[tuple[str, dict[str, str], dict[str, str]]]:
    """Name, settings, and the place of certificates in folders, of each host."""
    services = documents("compose.cluster.yaml")[0]["services"]
    for name in ("a", "b", "c"):
        folders = [mount.split(":") for mount in services[name]["volumes"]]
        places = {inside: outside for outside, inside, *_ in folders}
        yield name, filled_in(services[name]["environment"]), places


def of_pod(field: str, number: int, labels: dict[str, str]) -> str:
    """A field of a pod by the downward API; a label that is not there is empty."""
    if field == "metadata.name":
        return f"holdfast-{number}"
    found = re.fullmatch(r"metadata\.labels\['([^']+)'\]", field)
    assert found is not None
    return labels.get(found[1], "")


def pod_hosts(zone: str | None = None) -> Iterator[tuple[str, dict[str, str]]]:
    """Name and settings of each host, as the kubelet gives them on nodes with or without a zone."""
    labels = {"topology.kubernetes.io/zone": zone} if zone is not None else {}
    (container,) = manifests("StatefulSet")["holdfast"]["spec"]["template"]["spec"]["containers"]
    for number in range(3):
        found: dict[str, str] = {}
        for each in container["env"]:
            source = each.get("valueFrom", {})
            value = each.get("value", "")
            if "secretKeyRef" in source:
                value = SECRET[source["secretKeyRef"]["key"]]
            elif "fieldRef" in source:
                value = of_pod(source["fieldRef"]["fieldPath"], number, labels)
            for name in re.findall(r"\$\((\w+)\)", value):
                value = value.replace(f"$({name})", found[name])
            found[each["name"]] = value
        yield f"holdfast-{number}", found


def shown(variables: dict[str, str]) -> dict[str, str]:
    """The settings that check-config shows; it refuses what `serve` would."""
    done = run_command("check-config", variables=variables)
    assert (done.returncode, done.stderr) == (0, "")
    return dict(line.split(" = ", 1) for line in done.stdout.splitlines())


def certificates(folder: Path, hosts: list[str]) -> None:
    done = run_command("cluster", "certificates", "--hosts", ",".join(hosts), "--out", str(folder))
    assert done.returncode == 0, done.stderr


def test_hosts_of_the_compose_file_are_a_cluster(tmp_path: Path) -> None:
    made = tmp_path / "certificates"
    certificates(made, ["a", "b", "c"])
    for name, settings, places in compose_hosts():
        assert places["/certificates"] == f"./certificates/{name}"
        given = {
            variable: value.replace("/certificates", str(made / name))
            for variable, value in settings.items()
        }

        found = shown({**given, "HOLDFAST_DATA": str(tmp_path / name)})

        assert found["host_name"] == name
        assert found["cluster_hosts"] == "a,b,c"
        assert found["peer_address"] == f"holdfast-{name}:9325"
    balanced = re.findall(r"server (\w) (\S+):9324", (DEPLOY / "haproxy.cfg").read_text())
    assert balanced == [(name, f"holdfast-{name}") for name in "abc"]


def test_no_volume_is_taken_for_a_drive_of_windows() -> None:
    """As the engine takes `c:/data`, and then refuses to start."""
    compose = documents("compose.cluster.yaml")[0]
    mounts = [mount for each in compose["services"].values() for mount in each.get("volumes", ())]
    sources = {mount.split(":")[0] for mount in mounts}

    assert {name for name in sources if not name.startswith("./")} == compose["volumes"].keys()
    assert all(len(name) > 1 for name in sources)


def test_keys_of_the_peers_are_not_committed() -> None:
    ignored = (DEPLOY.parent / ".gitignore").read_text().splitlines()

    for _, _, places in compose_hosts():
        folder = Path(places["/certificates"]).parent
        assert f"/deploy/{folder}/" in ignored


@pytest.mark.parametrize("words", ["serve", "cluster try", "fleet try"])
def test_folders_that_make_fills_with_keys_are_not_committed(words: str) -> None:
    ignored = (DEPLOY.parent / ".gitignore").read_text().splitlines()

    shown = run_command(*words.split(), "--help").stdout
    (folder,) = re.findall(r"\[(?:default: )?(holdfast-\w+)\]", shown)

    assert f"{folder}/" in ignored


@pytest.mark.parametrize("zone", [None, "eu-central-1a"], ids=["no zone", "zone"])
def test_hosts_of_the_pods_are_a_cluster(zone: str | None, tmp_path: Path) -> None:
    names = [name for name, _ in pod_hosts()]
    made = tmp_path / "certificates"
    certificates(made, names)
    for name in names:  # as `kubectl create secret` names them
        for file in ("ca.pem", "peer.pem", "peer.key"):
            (made / f"{name}.{file}").write_bytes((made / name / file).read_bytes())
    for name, settings in pod_hosts(zone):
        given = {
            variable: value.replace("/certificates", str(made))
            for variable, value in settings.items()
        }

        found = shown({**given, "HOLDFAST_DATA": str(tmp_path / name)})

        assert found["host_name"] == name
        assert found["cluster_hosts"] == ",".join(names)
        assert found["peer_address"] == f"{name}.holdfast-peers:9325"
        assert found.get("zone") == (zone or "None")


@pytest.mark.parametrize("name", ["holdfast", "etcd"])
def test_manifests_fit_together(name: str) -> None:
    stateful_set = manifests("StatefulSet")[name]["spec"]
    (container,) = stateful_set["template"]["spec"]["containers"]
    labels = stateful_set["template"]["metadata"]["labels"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    headless = manifests("Service")[stateful_set["serviceName"]]["spec"]

    assert stateful_set["replicas"] == 3
    assert stateful_set["selector"]["matchLabels"] == labels == headless["selector"]
    assert headless["clusterIP"] == "None"
    assert {each["targetPort"] for each in headless["ports"]} <= set(ports)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    budgets = [each["spec"] for each in manifests("PodDisruptionBudget").values()]
    (budget,) = (each for each in budgets if each["selector"]["matchLabels"] == labels)
    assert budget["maxUnavailable"] == 1
    volumes = {each["name"] for each in stateful_set["template"]["spec"].get("volumes", ())}
    volumes |= {each["metadata"]["name"] for each in stateful_set["volumeClaimTemplates"]}
    assert {each["name"] for each in container["volumeMounts"]} == volumes
    assert manifests("Secret")["holdfast"]["stringData"].keys() == SECRET.keys()


def test_etcds_of_both_name_the_members_that_there_are() -> None:
    services = documents("compose.cluster.yaml")[0]["services"]
    names = ["etcd-1", "etcd-2", "etcd-3"]
    expected = ",".join(f"{name}=http://{name}:2380" for name in names)
    for name in names:
        assert services[name]["environment"]["ETCD_NAME"] == name
        assert services[name]["environment"]["ETCD_INITIAL_CLUSTER"] == expected
    (container,) = manifests("StatefulSet")["etcd"]["spec"]["template"]["spec"]["containers"]
    values = {each["name"]: each.get("value") for each in container["env"]}
    pods = [f"etcd-{number}=http://etcd-{number}.etcd:2380" for number in range(3)]
    assert values["ETCD_INITIAL_CLUSTER"] == ",".join(pods)
    for _, settings in pod_hosts():
        clients = [f"http://etcd-{number}.etcd:2379" for number in range(3)]
        assert settings["HOLDFAST_ETCD"] == ",".join(clients)
