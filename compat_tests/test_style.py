"""Style rules beyond the linter: banned calls and names, clocks and chance, lengths, missing tests.

Each exception is in a table below with its reason. A rule reads the syntax tree, so comments and
texts do not matter.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
PACKAGES = ("auth", "visibility", "storage", "cluster", "sqs_api", "spark_jobs", "compat_tests")
LINES_MAX = 700
"""A file is cut by subject, not because of this; a longer one is hardly of one subject."""

PRINTING = {
    "spark_jobs/__main__.py": "the command line speaks on standard output",
    "compat_tests/benchmarks/": "commands of their own",
    "compat_tests/clients/snippets/": "the guide's examples print what they received",
    "spark_jobs/benchmarks/": "commands of their own",
}
CLOCK_AND_CHANCE = {
    "cluster/clock.py": "the one place that reads the clock and draws random bits",
    "storage/engines/store_options.py": "the default id of a new log; the simulator gives its own",
    "compat_tests/": "a client has a clock of its own",
    "spark_jobs/": "a job is no part of the service",
}
ENVIRONMENT = {
    "sqs_api/settings/config.py": "the one place that reads the environment",
    "sqs_api/__main__.py": "the native module is left out before anything is imported",
    "sqs_api/archiving/lake_process.py": "a process that reads no code of the settings",
    "spark_jobs/__main__.py": "the jobs' one place that reads the environment",
    "spark_jobs/lib/spark.py": "Spark finds Java and Python by the environment only",
    "compat_tests/": "the suite's own switches",
}
BLIND_EXCEPT = {
    "cluster/members/membership.py": (
        "the root of announcing this host: a bug is logged, and it is announced again"
    ),
    "cluster/peers/link.py": (
        "the root of a peer's message, request or answer: a bug costs that one, not the connection"
    ),
    "cluster/peers/transport.py": (
        "the root of a dialer's task: a bug is logged, and the link made anew"
    ),
    "cluster/coordination/etcd_watch.py": "the root of a watch: a listener's bug does not end it",
    "sqs_api/gateway/exchange.py": (
        "the root of an answer: a bug becomes InternalError and a log line"
    ),
    "sqs_api/gateway/gateway.py": (
        "the root of a request: a bug becomes InternalError and a log line"
    ),
    "sqs_api/cloudwatch/monitoring.py": "the root of a request, as in the gateway",
    "sqs_api/gateway/transact_messages.py": "the root of a request, as in the gateway",
    "cluster/parts/split_fifo_sends.py": "the root of a request, as in the gateway",
    "cluster/parts/shared_tasks.py": "the root of a look: a bug is logged, and the next look comes",
    "cluster/parts/unlocking.py": "the root of a question: a bug is logged, and it is asked again",
    "cluster/shards/answers.py": "the root of a callback: a bug in one does not delay the others",
    "cluster/shards/delivery.py": "the root of a delivery: a bug is logged, and it is made again",
    "cluster/shards/lead.py": "a store that raises anything has failed: the shard is loaded anew",
    "cluster/shards/shard.py": (
        "a store that cannot be opened or loaded is tried again, or another host leads; the root "
        "of its news, rows too: a listener's bug does not stop it"
    ),
    "visibility/rules/pulses.py": "the same of a pulse, which is tried again later",
    "visibility/rules/turn.py": (
        "deciding changes nothing: a bug in it costs one request, which gets InternalError"
    ),
    "storage/log/disk.py": "the root of a thread's work: the loop is handed the error and decides",
    "storage/copies/convert.py": (
        "RocksDB raises bare exceptions; a damaged log is opened in another way"
    ),
    "sqs_api/gateway/deletions.py": (
        "the root of dropping and restoring queues: a bug is logged and the step repeated"
    ),
    "sqs_api/periodic.py": (
        "the root of repeated work: a bug is a log line, and the work comes again"
    ),
    "compat_tests/clients/old_boto3_worker.py": "the worker reports its crash to the caller",
}
READ_AT_ONCE = {
    *("count", "inner_text", "all_inner_texts", "text_content", "all_text_contents"),
    *("input_value", "is_visible", "is_hidden", "is_enabled", "is_disabled", "is_checked"),
    "get_attribute",
}
"""Questions about elements that Playwright answers at once."""
LONG_FILES: dict[str, str] = {}
"""Files over LINES_MAX that read better whole, each with the reason."""

CLIENT_DATA_ONLY = (
    "auth/canonical.py",
    "auth/sigv4.py",
    "sqs_api/protocol/json_codec.py",
    "sqs_api/protocol/query_codec.py",
    "visibility/contract/validate.py",
)
"""Modules where every value came from a client, so a client could make an assertion fail."""

BANNED_WORDS = {"utils", "util", "helpers", "helper", "common", "manager", "handler", "misc"}
BANNED_CALLS = re.compile(
    r"^(time\.(time|time_ns|monotonic|monotonic_ns|perf_counter|perf_counter_ns)"
    r"|datetime\.(datetime\.)?(now|utcnow|today)|date\.today|datetime\.date\.today"
    r"|random\.\w+|secrets\.\w+|uuid\.uuid[14]|os\.urandom|os\.getrandom)$"
)
BANNED_IMPORTS = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"},
    "uuid": {"uuid1", "uuid4"},
    "os": {"urandom", "getrandom", "environ", "getenv"},
    "random": None,
    "secrets": None,
}
UNFINISHED = re.compile(r"\bTODO\b(?!\(#\d+\))|\b(FIXME|XXX|HACK)\b")
QUESTION = re.compile(r"(What|How|Why|Who|Where|Whether)\b")


def sources() -> list[str]:
    """Every module of ours, as a path from the top of the checkout."""
    found = [path for package in PACKAGES for path in (CHECKOUT / package).rglob("*.py")]
    return sorted(path.relative_to(CHECKOUT).as_posix() for path in found)


@cache
def tree(path: str) -> ast.Module:
    """The syntax tree of the module."""
    return ast.parse((CHECKOUT / path).read_text(), path)


@cache
def nodes(path: str) -> tuple[ast.AST, ...]:
    """All nodes of the tree: to walk it once for each rule takes longer than to parse it."""
    return tuple(ast.walk(tree(path)))


def is_test(path: str) -> bool:
    """True for unit tests and what they share."""
    return "/tests/" in path or path.rsplit("/", 1)[1].startswith(("test_", "conftest"))


def excepted(path: str, table: dict[str, str]) -> bool:
    """True if the table names the file or its folder."""
    return any(path == entry or (entry.endswith("/") and path.startswith(entry)) for entry in table)


def dotted(node: ast.expr) -> str:
    """The dotted name of an expression, or an empty text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        start = dotted(node.value)
        return f"{start}.{node.attr}" if start else ""
    return ""


# -- rules: each yields the line numbers that break it ---------------------------------------------


def prints(path: str) -> Iterator[int]:
    """The program writes only to its log, the command line and HTTP."""
    if is_test(path) or excepted(path, PRINTING):
        return
    for node in nodes(path):
        if isinstance(node, ast.Call) and dotted(node.func) in {"print", "breakpoint", "pprint"}:
            yield node.lineno


def reads_clock_or_chance(path: str) -> Iterator[int]:
    """Time and chance come as arguments, so that a run can be repeated."""
    if is_test(path) or excepted(path, CLOCK_AND_CHANCE):
        return
    for node in nodes(path):
        if isinstance(node, ast.Attribute) and BANNED_CALLS.match(dotted(node)):
            yield node.lineno
        if isinstance(node, ast.ImportFrom) and node.module in BANNED_IMPORTS:
            banned = BANNED_IMPORTS[node.module]
            if banned is None or banned & {alias.name for alias in node.names} - {
                "environ",
                "getenv",
            }:
                yield node.lineno


def reads_environment(path: str) -> Iterator[int]:
    """Settings are read in one place."""
    if is_test(path) or excepted(path, ENVIRONMENT):
        return
    for node in nodes(path):
        if isinstance(node, ast.Attribute) and dotted(node) in {"os.environ", "os.getenv"}:
            yield node.lineno
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            names = {alias.name for alias in node.names}
            yield from [node.lineno] if names & {"environ", "getenv"} else []


def excepts_blindly(path: str) -> Iterator[int]:
    """Only the roots of requests and tasks catch everything and continue."""
    if is_test(path) or excepted(path, BLIND_EXCEPT):
        return
    for node in nodes(path):
        if isinstance(node, ast.ExceptHandler):
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            names = {dotted(each) if each else "" for each in caught}
            raises = isinstance(node.body[-1], ast.Raise)  # it cleans up or renames, and raises
            if names & {"", "Exception", "BaseException"} and not raises:
                yield node.lineno


def leaves_unfinished_business(path: str) -> Iterator[int]:
    """A TODO names its issue, as in TODO(#12); a FIXME is fixed instead."""
    if path == "compat_tests/test_style.py":
        return
    if not UNFINISHED.search((CHECKOUT / path).read_text()):
        return  # the tokens would take a while
    with tokenize.open(CHECKOUT / path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.COMMENT and UNFINISHED.search(token.string):
                yield token.start[0]


def is_too_long(path: str) -> Iterator[int]:
    """A file has one subject."""
    lines = (CHECKOUT / path).read_text().count("\n")
    if lines > LINES_MAX and path not in LONG_FILES:
        yield lines


def lacks_docstring(path: str) -> Iterator[int]:
    """The first lines say what a file is for."""
    module = tree(path)
    if module.body and ast.get_docstring(module) is None:
        yield 1


def asserts_client_data(path: str) -> Iterator[int]:
    """An assertion states what the programmer believes, never what a client may send."""
    if path not in CLIENT_DATA_ONLY:
        return
    at_import = {
        id(inner)
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef) and node.name == "register"  # fills a table
        for inner in ast.walk(node)
    }
    for node in nodes(path):
        if isinstance(node, ast.Assert) and id(node) not in at_import:
            yield node.lineno


def has_empty_name(path: str) -> Iterator[int]:
    """Modules and classes are named after their concept."""
    if BANNED_WORDS & set(Path(path).stem.split("_")):
        yield 1
    for node in nodes(path):
        if isinstance(node, ast.ClassDef):
            words = {word.lower() for word in re.findall(r"[A-Z][a-z0-9]*", node.name)}
            if BANNED_WORDS & words:
                yield node.lineno


def opens_with_a_question(path: str) -> Iterator[int]:
    """A docstring begins with a noun phrase or a verb, not with What, How, Why, Who or Where."""
    for node in nodes(path):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and QUESTION.match(str(node.value.value))
        ):
            yield node.lineno


def claims_at_once(path: str) -> Iterator[int]:
    """A claim about a page waits until it holds: `expect` of `compat_tests/chromium.py`, not that
    of Playwright, which waits for less time and may not be installed.

    Not seen: what is asked for in a statement before the assert, and kept under a name. That is
    right for what is gone by then; such a test waits for what it reads with `expect` first."""
    if not path.startswith("compat_tests/test_"):
        return
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("playwright"):
            yield node.lineno
    if not path.startswith("compat_tests/test_console"):
        return
    for node in nodes(path):
        if isinstance(node, ast.Assert):
            inner = [*ast.walk(node.test)]
            asked = [
                each.func.attr
                for each in inner
                if isinstance(each, ast.Call)
                and isinstance(each.func, ast.Attribute)
                and (not each.args or each.func.attr == "get_attribute")
            ]
            addresses = [
                dotted(each)
                for each in inner
                if isinstance(each, ast.Attribute) and dotted(each).endswith("page.url")
            ]
            if READ_AT_ONCE & {*asked} or addresses:
                yield node.lineno


RULES: tuple[Callable[[str], Iterator[int]], ...] = (
    prints,
    reads_clock_or_chance,
    reads_environment,
    excepts_blindly,
    leaves_unfinished_business,
    is_too_long,
    lacks_docstring,
    asserts_client_data,
    has_empty_name,
    opens_with_a_question,
    claims_at_once,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.__name__))
def test_no_file_breaks_the_rule(rule: Callable[[str], Iterator[int]]) -> None:
    broken = [f"{path}:{line}" for path in sources() for line in rule(path)]

    assert not broken, f"{rule.__doc__}\n" + "\n".join(broken)


def test_a_name_of_a_file_stands_once() -> None:
    names = Counter(
        name
        for path in sources()
        if "tests/" not in path and not (name := path.rpartition("/")[2]).startswith("__")
    )

    assert [name for name, files in names.items() if files > 1] == []


def test_exceptions_still_exist_or_are_expected() -> None:
    for table in (PRINTING, CLOCK_AND_CHANCE, ENVIRONMENT, BLIND_EXCEPT, LONG_FILES):
        assert all(reason and path.split("/")[0] in PACKAGES for path, reason in table.items())


# -- every action has its tests --------------------------------------------------------------------


def actions() -> list[str]:
    """The rows of the operation table, read without importing it: this suite imports nothing of
    ours."""
    text = (CHECKOUT / "visibility" / "contract" / "actions.py").read_text()
    return re.findall(r"^ +Action\(\s*operations\.(\w+),", text, re.MULTILINE)


def test_the_table_has_every_action_of_aws() -> None:
    assert len(set(actions())) == 23


@pytest.mark.parametrize("action", actions())
def test_action_is_asked_for_by_the_suite(action: str) -> None:
    texts = [
        path.read_text()
        for path in (CHECKOUT / "compat_tests").glob("test_*.py")
        if path.name not in {"test_style.py", "test_model_drift.py"}
    ]

    assert any(f'"{action}"' in text for text in texts)
