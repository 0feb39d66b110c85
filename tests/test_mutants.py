"""The list of planted faults matches the code: each can be planted and has its test."""

import ast

import pytest

from tests.mutants import MUTANTS, ROOT, planted


def test_each_fault_can_be_planted():
    for mutant in MUTANTS:
        planted(mutant, (ROOT / mutant.file).read_text())


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_planted_fault_is_still_python(mutant):
    text = (ROOT / mutant.file).read_text()
    faulty = ast.parse(planted(mutant, text))
    assert ast.dump(faulty) != ast.dump(ast.parse(text))


def test_each_fault_has_a_test_of_that_name():
    for laws in {m.laws for m in MUTANTS}:
        nodes = ast.parse((ROOT / laws).read_text()).body
        tests = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        assert {m.test for m in MUTANTS if m.laws == laws} <= tests


def test_no_two_faults_are_the_same():
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)
    assert len({(m.file, m.source, m.replacement) for m in MUTANTS}) == len(MUTANTS)


def test_a_source_text_that_does_not_occur_once_is_refused():
    with pytest.raises(ValueError, match="occurs 0 times"):
        planted(MUTANTS[0], "nothing")
    with pytest.raises(ValueError, match="occurs 2 times"):
        planted(MUTANTS[0], 2 * MUTANTS[0].source)
