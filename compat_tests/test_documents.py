"""The documents agree with the tree: links, the reading list, settings, alerts, width of lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compat_tests.long_runs import RUNS, with_runs
from compat_tests.rooms import README, with_drawing

CHECKOUT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    path.relative_to(CHECKOUT).as_posix()
    for path in [
        *CHECKOUT.glob("*.md"),
        *CHECKOUT.glob(".github/**/*.md"),
        *CHECKOUT.glob("[a-z]*/**/*.md"),
    ]
    if "node_modules" not in path.parts
)
READING_LINES_MAX = 3_000
DESIGN_WORDS_MAX = 2_500
PRESENT = [each for each in DOCUMENTS if each != "CHANGELOG.md" and "/reasons/" not in each]
DESIGNS = [each for each in DOCUMENTS if Path(each).name == "DESIGN.md"]


def text_of(document: str) -> str:
    return (CHECKOUT / document).read_text()


def anchors_of(document: str) -> set[str]:
    """The headings as GitHub names them in links."""
    titles = re.findall(r"^#+ (.*)$", text_of(document), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files_and_headings(document: str) -> None:
    broken = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text_of(document)):
        if "://" in target:
            continue
        file = (CHECKOUT / document).parent / target if target else CHECKOUT / document
        if not file.exists() or (anchor and anchor not in anchors_of(str(file))):
            broken.append(f"{target}#{anchor}")
    assert broken == []


@pytest.mark.parametrize("document", [each for each in DOCUMENTS if each != "CHANGELOG.md"])
def test_modules_that_are_named_exist(document: str) -> None:
    modules = {path.name for path in CHECKOUT.glob("[a-z]*/**/*.py")}
    text = text_of(document)
    named = set(re.findall(r"`(?:\w+/)*(\w+\.py)`", text))
    listed = set(re.findall(r"^ {4}(\w+\.py) ", text, re.M))

    assert (named | listed) - modules == set()


@pytest.mark.parametrize("document", PRESENT)
def test_paths_that_are_named_lead_to_files(document: str) -> None:
    files = [
        "/" + path.relative_to(CHECKOUT).as_posix() for path in CHECKOUT.glob("[a-z]*/**/*.py")
    ]
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", text_of(document)))

    assert {path for path in named if not any(file.endswith("/" + path) for file in files)} == set()


@pytest.mark.parametrize("design", DESIGNS)
def test_a_design_is_short_and_has_its_reasons_beside_it(design: str) -> None:
    text = text_of(design)
    reasons = (CHECKOUT / design).with_name("reasons").glob("*.md")
    unlinked = [file.name for file in reasons if f"(reasons/{file.name})" not in text]

    assert len(text.split()) <= DESIGN_WORDS_MAX
    assert re.findall(r"^(?:#|\*\*).*\d{4}-\d\d-\d\d.*$", text, re.M) == []
    assert unlinked == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_prose_has_at_most_100_columns(document: str) -> None:
    prose = re.sub(r"^ *```.*?^ *```$", "", text_of(document), flags=re.M | re.S)
    is_free = re.compile(r" *\||\[!\[")  # a table's row, a picture with a link

    assert [
        line for line in prose.splitlines() if len(line) > 100 and not is_free.match(line)
    ] == []


def test_each_rule_has_tests_that_exist() -> None:
    rules = text_of("cluster/RULES.md")
    numbers = re.findall(r"^(\d+)\. ", rules, re.M)
    proofs = dict(re.findall(r"^\| (\d+) \| (.*) \|$", rules, re.M))
    missing = []
    for folder, file, test in re.findall(r"`(\w+)/([\w/]+)::(\w+)`", rules):
        place = CHECKOUT / folder / ("" if folder == "compat_tests" else "tests") / file
        source = place.with_name(f"test_{place.name}.py")
        if not source.exists() or f"def test_{test}(" not in source.read_text():
            missing.append(f"{source.relative_to(CHECKOUT)}::test_{test}")

    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    assert list(proofs) == numbers
    assert all("::" in tests for tests in proofs.values())
    assert missing == []


def test_each_rule_is_cited_where_the_code_keeps_it() -> None:
    numbers = set(re.findall(r"^(\d+)\. ", text_of("cluster/RULES.md"), re.M))
    files = CHECKOUT.glob("[a-z]*/**/*.py")

    cited = {rule for path in files for rule in re.findall(r"\brule (\d+)", path.read_text())}

    assert numbers - cited == set()


def test_what_make_starts_is_here() -> None:
    text = text_of("Makefile").replace("$(FAULT)", "-m compat_tests.faults.")
    packages = {path.parent.name for path in CHECKOUT.glob("*/__init__.py")}
    modules = re.findall(r"-m (\w+(?:\.\w+)+)(?= |$)", text, re.M)
    ours = [each for each in modules if each.split(".")[0] in packages]
    tests = re.findall(r"[\w/]+\.py\b", text)

    assert len(ours) > 10
    missing = [
        each
        for each in ours
        if not (CHECKOUT / f"{each.replace('.', '/')}.py").exists()
        and not (CHECKOUT / each.replace(".", "/") / "__main__.py").exists()
    ]
    assert missing + [each for each in tests if not (CHECKOUT / each).exists()] == []


def test_no_file_cites_a_sheet_that_is_not_here() -> None:
    rules = text_of("cluster/RULES.md")
    last = max(int(number) for number in re.findall(r"^(\d+)\. ", rules, re.M))
    sheets = {Path(name).name for name in DOCUMENTS}
    foreign = []
    for path in sorted([*CHECKOUT.glob("[a-z]*/**/*.py"), *CHECKOUT.glob("[a-z]*/**/*.md")]):
        if path.is_relative_to(CHECKOUT / "build"):  # what the SDKs' examples installed
            continue
        text = path.read_text()
        cited = re.findall(r"[A-Z]{4,}[\s#]+§\S*", text)
        cited += [name for name in re.findall(r"\b[A-Z]+\.md\b", text) if name not in sheets]
        cited += [number for number in re.findall(r"[Rr]ules? (\d+)", text) if int(number) > last]
        foreign += [f"{path.relative_to(CHECKOUT)}: {each}" for each in cited]
    assert foreign == []


def test_the_tables_of_the_long_runs_are_those_of_their_data() -> None:
    text = RUNS.read_text()

    assert with_runs(text) == text


def test_the_drawing_of_the_rooms_is_that_of_the_contracts() -> None:
    assert README.read_text() == with_drawing(README.read_text())


def test_ten_files_suffice_to_read() -> None:
    files = re.findall(r"^\d\. `([\w/]+\.py)`", text_of("README.md"), re.M)

    assert 8 <= len(files) <= 10
    assert sum(len(text_of(file).splitlines()) for file in files) < READING_LINES_MAX


def test_each_setting_is_in_a_guide() -> None:
    settings = re.findall(r"^# (\w+) = ", text_of("deploy/holdfast.example.toml"), re.M)
    guides = text_of("sqs_api/OPERATING.md") + text_of("spark_jobs/README.md")
    named = {name.replace("-", "_") for name in re.findall(r"`(?:--)?([\w-]+)`", guides)}

    assert len(settings) > 30
    assert set(settings) - named == set()


def test_runbook_names_what_the_service_says() -> None:
    runbook = text_of("deploy/runbook.md")
    sources = "\n".join(
        path.read_text()
        for package in ("visibility", "storage", "cluster", "sqs_api")
        for path in (CHECKOUT / package).rglob("*.py")
        if "tests" not in path.relative_to(CHECKOUT).parts
    )
    said = re.findall(r"`([a-z]+_[a-z_]+)`", runbook)
    events = [name for name in said if not name.startswith("holdfast_")]

    assert len(events) > 20
    assert [name for name in events if name not in sources] == []
