"""`holdfast credentials`, `users` and `keys` of a host act on the whole cluster, in its etcd."""

from __future__ import annotations

import asyncio
import os
import re
from base64 import b64encode
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from auth.auth_errors import AuthError
from auth.signing import SigningKey, signed_headers
from auth.sigv4 import Verifier
from cluster.catalog.catalog_records import PREFIX as CATALOG
from cluster.clock import SystemClock, SystemEntropy
from cluster.keys.identity_records import PREFIX as IDENTITIES
from cluster.keys.identity_store import IdentityStore
from cluster.keys.keyring import Keyring, Secrets
from cluster.members.host_folder import open_identity
from cluster.tests.catalogs import opened_catalog
from cluster.tests.coordinations import until
from cluster.tests.etcd_processes import etcd_program, running_etcd
from cluster.tests.stores import found
from sqs_api.node import start_node
from sqs_api.operators.user_admin import UserAdmin
from sqs_api.settings.cluster_records import open_coordination, settings_of_member
from sqs_api.settings.config import Settings, load
from sqs_api.settings.key_stores import open_keyring
from sqs_api.start_refusals import NodeRefused
from sqs_api.tests.commands import KEY, Said, run
from storage.files.folder import open_folder
from visibility.contract.errors import InvalidParameterValue

MEMBER = {
    "peer_address": "127.0.0.1:9325",
    "peer_ca": "ca.pem",
    "peer_certificate": "a.pem",
    "peer_key": "a.key",
}
POLICY = '{"Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}'


@pytest.fixture(autouse=True)
def _no_settings_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)


class Cluster:
    """The command line and the settings of hosts that share an etcd."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder = folder
        self.endpoint = endpoint
        self.key = self.new_master_key("master.key")

    def new_master_key(self, name: str) -> Path:
        file = self.folder / name
        file.write_bytes(b64encode(SystemEntropy().secret(32)))
        file.chmod(0o600)
        return file

    def config(self, host: str, **other: object) -> Path:
        given = {
            **MEMBER,
            "etcd": self.endpoint,
            "host_name": host,
            "data": self.folder / host,
            "master_key_file": self.key,
            **other,
        }
        file = self.folder / f"{host}.toml"
        file.write_text("".join(f'{name} = "{value}"\n' for name, value in given.items()))
        (self.folder / host).mkdir(exist_ok=True)
        return file

    def run(self, host: str, group: str, *arguments: object) -> Said:
        at = 1 if group == "policy" else 0
        before, after = arguments[:at], arguments[at:]
        return run(group, *before, "--config", self.config(host), *after)

    async def beside(self, host: str, group: str, *arguments: object) -> Said:
        """The same beside hosts that run here."""
        return await asyncio.to_thread(self.run, host, group, *arguments)

    def settings(self, host: str) -> Settings:
        return load({}, self.config(host))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if etcd_program() is None:
        pytest.skip("no etcd on this machine, and none in a package for its kind")
    with running_etcd(tmp_path / "etcd", size=1) as etcd:
        yield Cluster(tmp_path, etcd.endpoints[0])


class Host:
    """A running host, as far as it knows users and keys."""

    def __init__(self, keyring: Keyring, identities: IdentityStore) -> None:
        self.keyring = keyring
        self.identities = identities
        self.verifier = Verifier(identities.credentials())
        self.reloads = 0
        identities.subscribe(self._adopt)

    @classmethod
    async def open(cls, settings: Settings, stack: AsyncExitStack) -> Host:
        clock, entropy = SystemClock(), SystemEntropy()
        records = open_coordination(settings, "", clock, entropy, writer="")
        stack.push_async_callback(records.close)
        keyring = await open_keyring(
            settings, records.below, clock, entropy, owner=settings.account
        )
        below = records.below(IDENTITIES)
        return cls(keyring, await IdentityStore.open(below, keyring.secrets, clock, entropy))

    def _adopt(self) -> None:
        self.reloads += 1
        self.verifier.replace(self.identities.credentials())

    def knows(self, key_id: str, secret: str) -> bool:
        """True if a request that is signed with this key is accepted."""
        key = SigningKey(key_id, secret, "us-east-1")
        now_s = SystemClock().wall_s()
        headers = signed_headers(key, "POST", "/", {"host": "x"}, b"", now_s)
        sent = {name.lower().encode(): value.encode() for name, value in headers.items()}
        try:
            self.verifier.verify(b"POST", b"/", sent, b"", now_s)
        except AuthError:
            return False
        return True


async def make_queue(settings: Settings, secrets: Secrets) -> None:
    """Make the queue `orders` in the cluster's catalog."""
    clock, entropy = SystemClock(), SystemEntropy()
    catalog = await opened_catalog(
        open_coordination(settings, CATALOG, clock, entropy, writer=""),
        clock=clock,
        entropy=entropy,
        secrets=secrets,
    )
    await catalog.create_queue((settings.account, settings.region, "orders"), {}, {})
    await catalog.close()


@pytest.mark.slow
async def test_an_access_key_made_on_one_host_is_good_on_every_host(cluster: Cluster) -> None:
    early = await cluster.beside("a", "credentials", "add")
    assert (early.status, "no keys yet" in early.err) == (2, True)
    async with AsyncExitStack() as stack:
        hosts = [await Host.open(cluster.settings(name), stack) for name in "abc"]

        added = await cluster.beside("a", "credentials", "add")
        key_id, secret = re.findall(r"^export \w+=(\S+)$", added.out, re.MULTILINE)
        for host in hosts:
            await until(partial(host.knows, key_id, secret))
        assert (await cluster.beside("b", "credentials", "disable", key_id)).status == 0
        for host in hosts:
            await until(lambda host=host: not host.knows(key_id, secret))  # type: ignore[misc]

    assert [host.reloads >= 2 for host in hosts] == [True] * 3
    listed = await cluster.beside("c", "credentials", "list")
    assert re.fullmatch(rf"{key_id}  0+  AIDA\w+  disabled\n", listed.out)


@pytest.mark.slow
async def test_users_and_policies_are_those_of_the_cluster(
    cluster: Cluster, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text(POLICY)
    async with AsyncExitStack() as stack:
        hosts = [await Host.open(cluster.settings("a"), stack)]

        added = await cluster.beside("a", "users", "add", "ann", "--tag", "team=a")
        assert added.out == "added arn:aws:iam::000000000000:user/ann\n"
        again = await cluster.beside("b", "users", "add", "ann")
        assert (again.status, again.err) == (2, "there is a user ann already")
        assert (await cluster.beside("b", "users", "put-policy", "ann", "all", policy)).status == 0
        key = KEY.findall((await cluster.beside("c", "credentials", "add", "--user", "ann")).out)[0]

        shown = (await cluster.beside("a", "users", "show", "ann")).out
        assert "tag team = a" in shown
        assert POLICY in shown
        await make_queue(cluster.settings("a"), hosts[0].keyring.secrets)
        may = ("policy", "check", "--user", "ann", "--action", "SendMessage", "--queue")
        assert (await cluster.beside("b", *may, "orders")).status == 0
        assert "no queue bills" in (await cluster.beside("b", *may, "bills")).err
        assert (await cluster.beside("c", "users", "remove", "ann")).status == 0
        assert key not in (await cluster.beside("a", "credentials", "list")).out
        assert '"event":"users add"' in (cluster.folder / "a" / "audit.log").read_text().replace(
            ": ", ":"
        )


@pytest.mark.slow
async def test_the_console_of_one_host_changes_the_users_of_all(cluster: Cluster) -> None:
    async with AsyncExitStack() as stack:
        a, b = [await Host.open(cluster.settings(name), stack) for name in "ab"]
        user_admin = UserAdmin(a.identities, {})

        async def add(name: str) -> SigningKey:
            user = await user_admin.change(lambda store: store.add_user("0" * 12, name, {}))
            key = await user_admin.change(lambda store: store.add_key("0" * 12, user))
            return SigningKey(key.access_key_id, key.secret_access_key, "us-east-1")

        key = await add("ann")
        assert a.verifier.credentials.find(key.access_key_id) is not None  # at once
        await until(lambda: b.knows(key.access_key_id, key.secret_access_key))
        assert "user/ann" in (await cluster.beside("b", "users", "list")).out
        with pytest.raises(InvalidParameterValue, match="there is a user ann already"):
            await add("ann")
        users, keys = user_admin.read(IdentityStore.stored)

    assert [user.name for user in users] == ["ann"]
    assert [each.access_key_id for each in keys] == [key.access_key_id]


@pytest.mark.slow
async def test_keys_are_made_rotated_and_wrapped_anew_for_all_hosts(cluster: Cluster) -> None:
    async with AsyncExitStack() as stack:
        hosts = [await Host.open(cluster.settings(name), stack) for name in "ab"]

        assert (await cluster.beside("a", "keys", "add", "orders")).status == 0
        again = await cluster.beside("b", "keys", "add", "orders")
        assert (again.status, again.err) == (2, "there is a key orders already")
        for host in hosts:
            await until(lambda host=host: host.keyring.find("orders", "0" * 12) is not None)  # type: ignore[misc]
        data_key = await hosts[0].keyring.new_data_key(hosts[0].keyring.named("orders"))
        sealed = data_key.seal(b"body")
        assert (await found(hosts[1].keyring, data_key.number))[1].open(sealed) == b"body"

        assert (await cluster.beside("b", "keys", "rotate", "orders", "--rewrap")).out == (
            "1 data keys are under the new version\nrotated orders\n"
        )
        new = cluster.new_master_key("new.key")
        needed = await cluster.beside("a", "keys", "change-master")
        assert (needed.status, needed.err.startswith("--to: needed")) == (2, True)
        assert (await cluster.beside("a", "keys", "change-master", "--to", new)).out == (
            f"the keys of cluster holdfast are under {new} from now on\n"
        )
        refused = await cluster.beside("b", "keys", "list")
        assert refused.status == 2
        assert re.match(r"master key \S+ is not the master key of cluster holdfast", refused.err)
        assert "\n" not in refused.err

        await hosts[1].keyring.rotate("orders")
        cluster.key = new
        listed = (await cluster.beside("b", "keys", "list")).out
        assert re.search(r"^orders  \S+  000000000000  enabled  2 version\(s\)$", listed, re.M)
        later = await Host.open(cluster.settings("c"), stack)
        assert (await found(later.keyring, data_key.number))[1].open(sealed) == b"body"


@pytest.mark.slow
def test_an_etcd_that_is_away_is_refused_in_one_line(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "http://127.0.0.1:1")

    said = cluster.run("a", "credentials", "list")

    assert said.status == 2
    assert said.err.startswith("cannot read the records: ")
    assert "\n" not in said.err


async def test_the_folder_of_a_member_is_not_used_without_its_etcd(tmp_path: Path) -> None:
    """Alone, it would get keys and queues of its own."""
    open_folder(tmp_path)
    open_identity(tmp_path, SystemEntropy())

    with pytest.raises(NodeRefused, match=r"of a cluster: give the host.s --config"):
        await start_node(load({"data": tmp_path, "port": 0}, None))
    said = run("credentials", "--data", tmp_path, "add")

    assert said.status == 2
    assert "belongs to a host of a cluster" in said.err


def test_another_process_of_a_host_is_a_member_of_the_same_cluster(tmp_path: Path) -> None:
    settings = Cluster(tmp_path, "http://127.0.0.1:1").settings("a")
    member = settings_of_member(settings)

    again = Settings(data=settings.data, master_key_file=settings.master_key_file, **member)  # type: ignore[arg-type]

    assert again == settings
    assert settings_of_member(load({}, None)) == {}
