"""The table of rules and tests: what counts as a test of a rule."""

import textwrap

import pytest
from click.testing import CliRunner

from hack import rules

BOOK = """
require_tests = {require_tests}
[[section]]
title = "Queue"
family = "WQ"
[section.rules]
WQ-1 = "Keys wait in order."
WQ-14 = "A bucket."
WQ-14a = "A side bucket."
[[section]]
title = "Upstream"
family = "U"
[section.rules]
U-1 = "Once."
U-2 = "Twice."
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with the rules of BOOK and no test."""
    for name in ("hack", "docs", "tests/area"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "hack/rules.toml").write_text(BOOK.format(require_tests="false"))
    monkeypatch.setattr(rules, "ROOT", tmp_path)
    monkeypatch.setattr(rules, "RULES", tmp_path / "hack/rules.toml")
    monkeypatch.setattr(rules, "TESTS", tmp_path / "tests")
    return tmp_path


def proofs_of(repository, code):
    (repository / "tests/area/test_a.py").write_text(textwrap.dedent(code))
    book, proofs = rules.current()
    return book, proofs


def names(proofs):
    return {rule: [proof.name for proof in found] for rule, found in proofs.tests.items() if found}


def run(*arguments):
    return CliRunner().invoke(rules.main, arguments)


def test_a_name_that_starts_with_the_id_proves_the_rule(repository):
    _, proofs = proofs_of(
        repository,
        """
        def test_wq_1(): ...
        async def test_wq_14_bucket(): ...
        def test_wq_14a_side(): ...
        class TestQueue:
            def test_wq_1_in_a_class(self): ...
        """,
    )
    assert names(proofs) == {
        "WQ-1": ["test_wq_1", "TestQueue::test_wq_1_in_a_class"],
        "WQ-14": ["test_wq_14_bucket"],
        "WQ-14a": ["test_wq_14a_side"],
    }
    assert proofs.tests["WQ-1"][0].file == "tests/area/test_a.py"
    assert proofs.missing == ["U-1", "U-2"]


@pytest.mark.parametrize(
    "code",
    [
        "@pytest.mark.rules('WQ-1', 'U-2')\ndef test_x(): ...",
        "@pytest.mark.rules('U-2')\n@pytest.mark.rules('WQ-1')\nasync def test_x(): ...",
        "@pytest.mark.rules('U-2')\ndef test_wq_1_x(): ...",
        "pytestmark = [pytest.mark.plane, pytest.mark.rules('WQ-1', 'U-2')]\ndef test_x(): ...",
        "pytestmark = pytest.mark.rules('WQ-1')\n@pytest.mark.rules('U-2')\ndef test_x(): ...",
        "@pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.rules('WQ-1', 'U-2'))])\ndef test_x(n): ...",
        "@pytest.mark.rules('WQ-1', 'U-2')\nclass TestX:\n  def test_x(self): ...",
        "class TestX:\n  pytestmark = pytest.mark.rules('WQ-1')\n  @pytest.mark.rules('U-2')\n  def test_x(self): ...",
        "TestX = pytest.mark.rules('WQ-1', 'U-2')(Machine.TestCase)",
        "TestX = Machine.TestCase\nTestX.pytestmark = [pytest.mark.rules('WQ-1', 'U-2')]",
        "@pytest.mark.rules('WQ-1', 'U-2')\nclass Machine(RuleBasedStateMachine): ...\nTestX = Machine.TestCase",
    ],
)
def test_a_marker_proves_its_rules(repository, code):
    _, proofs = proofs_of(repository, f"\n{code}\n")
    assert {rule: len(found) for rule, found in names(proofs).items()} == {"WQ-1": 1, "U-2": 1}


@pytest.mark.parametrize(
    "code",
    [
        "def helper_wq_1(): ...",
        "def test_lws_1_other_contract(): ...",
        "def test_wq_without_number(): ...",
        "class Helper:\n  def test_wq_1(self): ...",
        "@pytest.mark.rules('WQ-1')\nclass Machine(RuleBasedStateMachine): ...",
        "@pytest.mark.parametrize('rules', ['WQ-1'])\ndef test_x(rules): ...",
    ],
)
def test_other_names_prove_nothing(repository, code):
    _, proofs = proofs_of(repository, f"\n{code}\n")
    assert not names(proofs)
    assert not proofs.unknown


@pytest.mark.parametrize("code", ["def test_wq_9_x(): ...", "@pytest.mark.rules('ABC-1')\ndef test_x(): ..."])
def test_an_id_without_a_rule_is_told(repository, code):
    book, proofs = proofs_of(repository, f"\n{code}\n")
    (problem,) = rules.problems(book, proofs)
    assert "tests/area/test_a.py::test_" in problem
    assert "not in rules.toml" in problem
    run("--write")
    assert run("--check").exit_code == 1


def test_ids_in_a_marker_must_be_plain(repository):
    with pytest.raises(rules.RulesError, match=r"tests/area/test_a.py:2: pytest.mark.rules takes ids as plain strings"):
        proofs_of(repository, "\n@pytest.mark.rules(*IDS)\ndef test_x(): ...\n")


def test_the_page_links_each_rule_to_its_tests(repository):
    book, proofs = proofs_of(repository, "def test_wq_1_x(): ...\nclass TestY:\n  def test_wq_1_y(self): ...\n")
    text = rules.page(book, proofs)
    assert (
        "| WQ-1 | Keys wait in order. | [area/test_a.py::TestY::test_wq_1_y](../tests/area/test_a.py)<br>"
        "[area/test_a.py::test_wq_1_x](../tests/area/test_a.py) |\n"
    ) in text
    assert "| U-1 | Once. |  |\n" in text


def test_without_options_the_command_prints_what_has_no_test(repository):
    proofs_of(repository, "def test_wq_1_x(): ...\n")
    result = run()
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        "WQ-14: A bucket.",
        "WQ-14a: A side bucket.",
        "U-1: Once.",
        "U-2: Twice.",
    ]


def test_check_tells_a_page_that_is_out_of_date(repository):
    assert run("--check").exit_code == 1
    assert run("--write").exit_code == 0
    assert run("--check").exit_code == 0
    proofs_of(repository, "def test_wq_1_x(): ...\n")
    assert "out of date" in run("--check").output


def test_the_switch_makes_a_rule_without_a_test_an_error(repository):
    (repository / "hack/rules.toml").write_text(BOOK.format(require_tests="true"))
    book, proofs = proofs_of(repository, "def test_wq_1_x(): ...\n")
    assert rules.problems(book, proofs)[0] == "WQ-14 has no test"
    run("--write")
    assert run("--check").exit_code == 1


@pytest.mark.parametrize(("old", "new"), [("WQ-14 =", "RF-14 ="), ("WQ-14 =", "WQ-x ="), ("U-2 =", '"U 2" =')])
def test_an_id_outside_its_family_is_refused(repository, old, new):
    (repository / "hack/rules.toml").write_text(BOOK.format(require_tests="false").replace(old, new))
    with pytest.raises(rules.RulesError, match=r"is no id of section"):
        rules.current()


def test_tests_of_this_repository_name_only_rules_that_exist():
    _, proofs = rules.current()
    assert proofs.unknown == []


def test_no_number_is_left_out_in_a_family():
    for section in rules.Rulebook.read(rules.RULES).sections:
        numbers = [int("".join(filter(str.isdigit, rule))) for rule in section.rules]
        assert sorted(set(numbers)) == list(range(1, max(numbers) + 1))
