"""The tool that compares old pages with today's sees numbers, units, dates and commits."""

from tests.lost_facts import facts, lost, without_code


def tokens(text):
    return [fact.token for fact in facts(text)]


def test_numbers_keep_sign_decimals_and_unit():
    text = "from -0.88 to 84 %, 11.0x, 50k, 5.1 M, 1,452, 5e8, 3x3, H=8, (2,2), 0.10.2."
    wanted = "-0.88 84% 11.0x 50k 5.1M 1452 5e8 3x3 8 2 2 0.10.2"
    assert tokens(text) == wanted.split()


def test_dates_and_commits_are_whole_and_names_are_no_numbers():
    assert tokens("e979ea2 on 2026-11-22: `v4_8`, size1m") == ["e979ea2", "2026-11-22"]


def test_code_blocks_are_left_out_line_for_line():
    text = "a 1\n\n    code 2\n\n```\n3\n```\n4\n"
    assert [(f.token, f.line) for f in facts(without_code(text))] == [("1", 1), ("4", 8)]


def test_a_fact_is_lost_where_no_page_holds_it():
    old = list(facts("from 1.5 to 2.5 %, then 7"))
    assert [f.token for f in lost(old, [{"1.5%", "2.5%"}], together=False)] == ["7"]


def test_together_asks_for_a_neighbour_on_the_same_page():
    old = list(facts("1.5 and 2.5"))
    assert lost(old, [{"1.5"}, {"2.5"}], together=False) == []
    assert len(lost(old, [{"1.5"}, {"2.5"}], together=True)) == 2
    assert lost(old, [{"1.5", "2.5"}], together=True) == []
