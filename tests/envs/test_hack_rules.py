"""Each rule and each program of `hack` on a board made by hand."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dtc.configs import hack as config_of_hack

from dtc.config import settings
from dtc.core.nets import Precision
from dtc.envs.hack import board, player, programs, rules, stage, targets, units, view
from dtc.envs.hack.game import hack
from dtc.envs.hack.picture import picture
from dtc.host.program import make_machine
from tests.envs import hack_twin

UP, DOWN, LEFT, RIGHT, SIPHON, WAIT = range(6)
DATA, PROGRAM, UNKNOWN = 1, 2, 3
RUNNER, TANK, GHOST, LURKER = 1, 2, 3, 4
ENV = hack()
ADVANCE, SETTLED = jax.jit(rules.advance), jax.jit(rules.settled)
NAMES = {program.name: k for k, program in enumerate(programs.PROGRAMS)}
EXIT = (5, 5)
PLAYER = {"row": 2, "column": 2, "hp": 2, "credits": 5, "energy": 5, "stage": 1, "siphons": 1}
PLAYER |= {"attack": 1, "show": 0, "calm": 0}


def game_of(cells=(), owned=(), clock=9, exit_at=EXIT, **numbers):
    """A game: {(row, column): {field: value}}, programs by name, numbers of the player."""
    planes = {field: np.zeros((6, 6), np.uint8) for field in hack_twin.FIELDS}
    planes["exit"][exit_at] = 1
    for place, fields in dict(cells).items():
        for field, x in fields.items():
            planes[field][place] = x
    flat = [jnp.asarray(x.reshape(36)) for x in planes.values()]
    scene = rules.Scene(
        tiles=board.Tiles(*flat[:9]),
        units=board.Units(*flat[9:]),
        player=player.Player(*(jnp.uint8(x) for x in (PLAYER | numbers).values())),
        owned=jnp.uint32(1 | sum(1 << NAMES[name] for name in owned)),
        clock=jnp.uint8(clock),
    )
    return SETTLED(scene)


def look(game):
    """({field: [6, 6]}, the player's numbers)."""
    flat = itertools.chain(*board.unpack(game.board))
    planes = [np.array(x).reshape(6, 6) for x in flat]
    numbers = dict(zip(PLAYER, np.asarray(game.player).tolist(), strict=True))
    return dict(zip(hack_twin.FIELDS, planes, strict=True)), numbers


def at(game, place):
    """{field: value} of a cell, without zeros."""
    return {field: int(x[place]) for field, x in look(game)[0].items() if x[place]}


def owned(game):
    return {name for name, k in NAMES.items() if int(game.owned) >> k & 1}


def allowed(game):
    return {a for a in range(28) if int(game.allowed) >> a & 1}


def play(game, *actions, words=None):
    """(the game, gains) after the actions; the gains are the last action's."""
    words = jnp.zeros(21, jnp.uint32) if words is None else words
    for action in actions:
        assert action in allowed(game)
        game, gains = ADVANCE(game, jnp.int32(action), words)
    return game, {name: int(x) for name, x in gains._asdict().items()}


def unit(kind, hp=1, **fields):
    return {"unit": kind, "hp": hp, **fields}


def asleep(kind, hp=1, **fields):
    """A unit that does not act in this turn."""
    return unit(kind, hp, stunned=2, **fields)


# Moves.


@pytest.mark.slow
def test_a_move_goes_one_cell_and_takes_what_lies_there():
    game = game_of({(1, 2): {"credits": 2, "energy": 3, "pickup": 1}})
    after, gains = play(game, UP)
    numbers = look(after)[1]
    assert (numbers["row"], numbers["column"]) == (1, 2)
    assert (numbers["credits"], numbers["energy"], numbers["siphons"]) == (7, 8, 2)
    assert at(after, (1, 2)) == {} and gains["units"] == 0


@pytest.mark.parametrize("action", [UP, DOWN, LEFT, RIGHT])
def test_a_move_hits_the_first_unit_in_sight_at_any_distance(action):
    down, right = hack_twin.STEPS[action]
    near, far = ((2 + n * down, 2 + n * right) for n in (1, 2))
    game = game_of({near: {"spawn": 1}, far: asleep(TANK, 3)}, attack=2)
    after, _ = play(game, action)
    assert at(after, far) == unit(TANK, 1, stunned=1) and look(after)[1]["row"] == 2
    game = game_of({near: asleep(GHOST, 2), far: asleep(TANK, 3)})
    after, _ = play(game, action)
    assert at(after, near)["hp"] == 1 and at(after, far)["hp"] == 3, "the first alone"


def test_a_block_stops_sight_and_way():
    assert LEFT not in allowed(game_of({(2, 1): {"block": DATA}, (2, 0): asleep(TANK, 3)}))
    game = game_of({(2, 1): {"block": DATA} | asleep(GHOST, 2)})
    assert LEFT not in allowed(game), "a unit in a block is not hit"
    after, _ = play(game_of({(2, 0): {"block": DATA} | asleep(GHOST, 2)}), LEFT)
    assert look(after)[1]["column"] == 1, "a block further on is no hindrance"


def test_what_goes_beyond_a_limit_is_lost():
    full = {"credits": 14, "energy": 15, "siphons": 9}
    game = game_of({(1, 2): {"credits": 3, "energy": 2, "pickup": 1}}, **full)
    after, _ = play(game, UP)
    most = {"credits": 15, "energy": 15, "siphons": 9}
    assert {name: look(after)[1][name] for name in most} == most
    assert at(after, (1, 2)) == {}, "it is taken all the same"
    after, _ = play(game_of({(2, 1): {"credits": 3}, (2, 3): {"energy": 1}}, **full), SIPHON)
    assert {name: look(after)[1][name] for name in most} == most | {"siphons": 8}
    after, _ = play(game_of(exit_at=(2, 3), hp=3, **full), RIGHT)
    assert (look(after)[1]["hp"], look(after)[1]["siphons"]) == (3, 9), "nor by a new stage"


def test_the_edge_of_the_board_is_no_way():
    assert allowed(game_of(row=0, column=5)) == {DOWN, LEFT, WAIT}
    assert allowed(game_of(row=5, column=0)) == {UP, RIGHT, WAIT}


@pytest.mark.slow
def test_what_is_not_allowed_is_waiting_and_counted():
    state, _ = ENV.reset(jax.random.key(0), ())
    state = state._replace(game=game_of(row=0, column=0))
    waited, plain = ENV.step(jax.random.key(1), state, jnp.int32(WAIT), ())
    for action in (UP, LEFT, SIPHON, 27):
        other, shown = ENV.step(jax.random.key(1), state, jnp.int32(action), ())
        jax.tree.map(np.testing.assert_array_equal, waited, other)
        assert shown.info["invalid"] == 1 and plain.info["invalid"] == 0


# A unit without hp.


def test_a_destroyed_unit_pays_and_leaves_a_credit_unless_it_was_called():
    after, gains = play(game_of({(2, 4): unit(RUNNER) | {"credits": 2}}), RIGHT)
    assert gains["units"] == 1 and at(after, (2, 4)) == {"credits": 3}
    after, _ = play(game_of({(2, 4): unit(RUNNER) | {"credits": 3}}), RIGHT)
    assert at(after, (2, 4)) == {"credits": 3}, "no more than three lie on a cell"
    after, gains = play(game_of({(2, 4): unit(RUNNER, called=1)}), RIGHT)
    assert gains["units"] == 1 and at(after, (2, 4)) == {}


# Siphon.

AROUND = {
    (1, 2): {"block": DATA, "points": 3},
    (2, 1): {"block": PROGRAM, "points": 1, "program": 7},
    (2, 3): {"block": UNKNOWN, "points": 1, "program": 9},
    (3, 2): {"credits": 2, "energy": 1},
    (1, 1): {"block": DATA, "points": 2},
}


def test_a_siphon_takes_the_plus_and_calls_as_many_units():
    spawn = {(row, 5): {"spawn": 1} for row in range(5)} | {(4, 0): {"spawn": 1}}
    after, gains = play(game_of(AROUND | spawn), SIPHON)
    numbers = look(after)[1]
    assert gains["points"] == 3 and owned(after) == {"wait", "exile", "tame"}
    assert (numbers["credits"], numbers["energy"], numbers["siphons"]) == (7, 6, 0)
    assert all(at(after, place)["siphoned"] for place in [(1, 2), (2, 1), (2, 3)])
    assert at(after, (3, 2)) == {} and "siphoned" not in at(after, (1, 1))
    called = look(after)[0]["called"]
    assert called.sum() == 5 == look(after)[0]["unit"].astype(bool).sum()
    assert not called[4, 5] + called[5].sum(), "in reading order"
    assert SIPHON not in allowed(after), "no siphon is left"


def test_a_siphon_needs_something_to_take():
    assert SIPHON not in allowed(game_of({(1, 1): {"credits": 1}}))
    assert SIPHON not in allowed(game_of({(1, 2): {"block": DATA, "siphoned": 1}}))
    assert SIPHON in allowed(game_of({(1, 2): {"energy": 1}}))
    assert SIPHON not in allowed(game_of({(1, 2): {"energy": 1}}, siphons=0))


def test_newcomers_go_round_from_the_offset_and_those_without_a_cell_do_not_come():
    words = np.zeros(21, np.uint32)
    words[stage.ORDER] = 2**16 * 14 // 36 + 1  # cell 14
    words[stage.KINDS] = 2 << 2 * (30 % 16)  # a ghost on cell 30
    spawn = {divmod(c, 6): {"spawn": 1} for c in (3, 13, 30)}
    cells = spawn | {(1, 2): {"block": DATA, "points": 2}}
    planes = look(play(game_of(cells), SIPHON, words=jnp.asarray(words))[0])[0]
    assert np.flatnonzero(planes["unit"]).tolist() == [3, 30]
    assert at(play(game_of(cells), SIPHON, words=jnp.asarray(words))[0], (5, 0)) == {
        "spawn": 1,
        "unit": GHOST,
        "hp": 2,
        "called": 1,
        "arrival": 3,
    }
    cells[1, 2]["points"] = 3
    cells[3, 3] = {"block": PROGRAM, "points": 1}
    planes = look(play(game_of(cells, row=2, column=2), SIPHON)[0])[0]
    assert np.flatnonzero(planes["unit"]).tolist() == [3, 13, 30]
    cells[2, 1] = {"block": DATA, "points": 3}
    cells[2, 2] = {"spawn": 1}
    planes = look(play(game_of(cells), SIPHON)[0])[0]
    assert np.flatnonzero(planes["unit"]).tolist() == [3, 30], "nor on the player's cell"


# Units.


@pytest.mark.parametrize(
    ("kind", "begin", "end"),
    [
        (RUNNER, (2, 5), (2, 3)),
        (TANK, (2, 5), (2, 4)),
        (GHOST, (5, 2), (4, 2)),
        (LURKER, (2, 5), (2, 4)),
    ],
)
def test_units_come_nearer_and_runners_twice(kind, begin, end):
    after, _ = play(game_of({begin: unit(kind)}), WAIT)
    assert at(after, end)["unit"] == kind and look(after)[0]["unit"].sum() == kind


def test_a_runner_that_comes_beside_the_player_hits_at_once():
    after, gains = play(game_of({(2, 4): unit(RUNNER)}), WAIT)
    assert gains["hp"] == 1 and at(after, (2, 3)) == unit(RUNNER, 1, stunned=1)


def test_a_runner_that_has_hit_does_not_act_again():
    after, gains = play(game_of({(2, 3): unit(RUNNER)}), WAIT)
    assert gains["hp"] == 1 and at(after, (2, 3)) == unit(RUNNER, 1, stunned=1)


def test_ghosts_pass_blocks_and_others_go_around():
    wall = {(row, 3): {"block": DATA} for row in range(1, 6)}
    after, _ = play(game_of(wall | {(2, 4): unit(GHOST)}), WAIT)
    assert at(after, (2, 3)) == {"block": DATA} | unit(GHOST)
    after, _ = play(game_of(wall | {(2, 4): unit(TANK)}), WAIT)
    assert at(after, (1, 4)) == unit(TANK)
    closed = wall | {(0, 3): {"block": DATA}}
    after, _ = play(game_of(closed | {(2, 4): unit(TANK)}), WAIT)
    assert at(after, (2, 4)) == unit(TANK), "there is no way"


def test_a_lurker_waits_until_the_player_is_three_steps_away():
    after, _ = play(game_of({(2, 5): unit(LURKER)}, column=1), WAIT)
    assert at(after, (2, 5)) == unit(LURKER)
    wall = {(row, 3): {"block": DATA} for row in range(1, 4)}
    after, _ = play(game_of(wall | {(2, 4): unit(LURKER)}), WAIT)
    assert at(after, (2, 4)) == unit(LURKER), "by the way there is"


def test_one_beside_the_player_hits_and_rests_for_a_turn():
    game = game_of({(2, 3): unit(TANK, 3)}, hp=3)
    game, gains = play(game, WAIT)
    assert gains["hp"] == 1 and at(game, (2, 3)) == unit(TANK, 3, stunned=1)
    game, gains = play(game, WAIT)
    assert gains["hp"] == 0 and at(game, (2, 3)) == unit(TANK, 3)
    assert play(game, WAIT)[1]["hp"] == 1


def test_hp_does_not_fall_below_0():
    cells = {(2, 3): unit(TANK), (2, 1): unit(TANK), (1, 2): unit(RUNNER), (3, 2): unit(GHOST)}
    after, gains = play(game_of(cells, hp=2), WAIT)
    assert gains["hp"] == 2 and look(after)[1]["hp"] == 0
    assert gains["shaping"] == -6, "the potential of a terminal state is 0"


def test_of_several_ways_a_unit_takes_the_first_in_reading_order():
    for begin, end in (
        ((4, 4), (3, 4)),
        ((0, 4), (0, 3)),
        ((0, 0), (0, 1)),
        ((4, 0), (3, 0)),
    ):
        after, _ = play(game_of({begin: unit(TANK)}), WAIT)
        assert at(after, end) == unit(TANK)


def test_where_several_meet_the_first_in_reading_order_goes():
    cells = {(0, 2): {"block": DATA}, (0, 3): unit(TANK, 1), (1, 4): unit(TANK, 3)}
    after, _ = play(game_of(cells), WAIT)
    assert at(after, (1, 3)) == unit(TANK, 1) and at(after, (1, 4)) == unit(TANK, 3)
    cells = {(4, 3): unit(TANK, 1), (3, 4): unit(TANK, 3), (2, 4): {"block": DATA}}
    after, _ = play(game_of(cells), WAIT)
    assert at(after, (3, 3)) == unit(TANK, 3) and at(after, (4, 3)) == unit(TANK, 1)


def test_no_unit_goes_where_one_stood_before_the_phase():
    after, _ = play(game_of({(2, 4): unit(TANK, 1), (2, 5): unit(TANK, 2)}), WAIT)
    assert at(after, (2, 3)) == unit(TANK, 1) and at(after, (2, 5)) == unit(TANK, 2)


def test_a_unit_acts_in_the_turn_in_which_it_arrives():
    game = game_of({(2, 5): unit(TANK, 3, arrival=2)})
    game, _ = play(game, WAIT)
    assert at(game, (2, 5)) == unit(TANK, 3, arrival=1)
    assert at(play(game, WAIT)[0], (2, 4)) == unit(TANK, 3)


def test_a_unit_recast_in_a_block_can_only_leave_it():
    cells = {(2, 4): {"block": DATA} | unit(TANK, 2)}
    assert at(play(game_of(cells), WAIT)[0], (1, 4)) == unit(TANK, 2), "by its first way"
    cells = {(2, 4): {"block": DATA} | unit(LURKER, 2)}
    assert at(play(game_of(cells), WAIT)[0], (2, 4)) == {"block": DATA} | unit(LURKER, 2)


@pytest.mark.parametrize("number", range(1, 9))
def test_a_unit_arrives_by_itself_every_12_less_stage_turns_but_not_while_it_is_calm(number):
    spawn = {(0, c): {"spawn": 1} for c in range(6)}
    game = game_of(spawn, clock=2, stage=number)
    game, _ = play(game, WAIT)
    assert not look(game)[0]["unit"].any() and game.clock == 1
    game, _ = play(game, WAIT)
    assert look(game)[0]["unit"].astype(bool).sum() == 1 and game.clock == 12 - number
    assert not look(game)[0]["called"].any()
    calm, _ = play(game_of(spawn, clock=1, calm=1, show=1), WAIT)
    assert calm.clock == 1 and look(calm)[1]["calm"] == look(calm)[1]["show"] == 0
    assert play(calm, WAIT)[0].clock == 11


def test_units_that_were_called_come_before_the_one_of_the_same_turn_that_comes_by_itself():
    cells = {(1, 2): {"block": DATA, "points": 2}} | {(0, c): {"spawn": 1} for c in range(4)}
    after, _ = play(game_of(cells, clock=1), SIPHON)
    planes = look(after)[0]
    assert planes["unit"][0].astype(bool).tolist() == [True, True, True, False, False, False]
    assert planes["called"][0].tolist() == [1, 1, 0, 0, 0, 0] and after.clock == 11
    del cells[0, 2], cells[0, 3]
    planes = look(play(game_of(cells, clock=1), SIPHON)[0])[0]
    assert planes["unit"].astype(bool).sum() == planes["called"].sum() == 2, "no cell is left"


# The exit.


@pytest.mark.parametrize("number", range(1, 8))
def test_the_exit_leads_to_the_next_stage(number):
    cells = {(0, 0): unit(TANK), (2, 1): unit(RUNNER), (2, 3): {"pickup": 1}}
    game = game_of(cells, exit_at=(2, 3), stage=number, attack=3, clock=1, show=4, calm=2)
    words = jax.random.bits(jax.random.key(number), (21,))
    after, gains = play(game, RIGHT, words=words)
    planes, numbers = look(after)
    assert gains["stage"] == number and gains["won"] == 0 == gains["hp"]
    wanted = PLAYER | {"column": 3, "stage": number + 1, "siphons": 3, "hp": 3}
    assert numbers == wanted | {"show": 4, "calm": 2}, "no turn ends"
    assert after.clock == 11 - number
    num_spawns = planes["spawn"].sum()
    num_units = (planes["unit"] > 0).sum()
    assert num_units == min((number + 1) // 2, num_spawns)
    assert (planes["arrival"][planes["unit"] > 0] == 3).all() and not planes["called"].any()
    row, column = np.argwhere(planes["exit"])[0]
    assert row >= 3 and column < 3 and gains["shaping"] == row - 2 + 3 - column - 1


@pytest.mark.slow
def test_the_exit_of_stage_8_wins():
    game = game_of({(2, 1): unit(RUNNER)}, exit_at=(2, 3), stage=8)
    after, gains = play(game, RIGHT)
    assert gains == dict.fromkeys(gains, 0) | {"stage": 8, "won": 1, "step": 1, "shaping": -1}
    state = ENV.reset(jax.random.key(0), ())[0]._replace(game=game)
    _, shown = ENV.step(jax.random.key(1), state, jnp.int32(RIGHT), ())
    assert shown.terminated and not shown.truncated and shown.info["stage_fraction"] == 1
    np.testing.assert_allclose(shown.reward, 8 + 20 - 0.01 + 0.05, rtol=1e-6)
    assert look(after)[1]["stage"] == 8


@pytest.mark.slow
def test_walking_to_and_fro_pays_nothing_but_the_steps():
    state, _ = ENV.reset(jax.random.key(0), ())
    state = state._replace(game=game_of())
    paid = []
    for action in (UP, LEFT, RIGHT, DOWN) * 2:
        state, shown = ENV.step(jax.random.key(1), state, jnp.int32(action), ())
        paid.append([float(shown.reward), float(shown.info["reward_shaping"])])
    np.testing.assert_allclose(np.sum(paid, 0), [-0.08, 0], atol=1e-6)
    assert np.abs(paid).min() > 0.01


@pytest.mark.parametrize("seed", range(5))
def test_an_episode_begins_as_the_page_says(seed):
    state, shown = ENV.reset(jax.random.key(seed), ())
    planes, numbers = look(state.game)
    begin = {"hp": 3, "credits": 2, "energy": 2, "stage": 1, "siphons": 1}
    begin |= {"attack": 1, "show": 0, "calm": 0}
    assert {name: numbers[name] for name in begin} == begin
    assert owned(state.game) == {"wait"} and state.game.clock == 11 and state.step_count == 0
    assert not planes["unit"].any() and not planes["siphoned"].any()
    ((row, column),) = np.argwhere(planes["exit"])
    assert (row < 3) != (numbers["row"] < 3) and (column < 3) != (numbers["column"] < 3)
    assert shown.first and not shown.last and shown.reward == 0 and shown.action_mask[WAIT]


def test_an_episode_is_truncated_after_500_steps():
    assert ENV.spec.max_steps == 500
    state, _ = ENV.reset(jax.random.key(0), ())
    state = state._replace(game=game_of(), step_count=jnp.int32(498))
    for is_last in (False, True):
        state, shown = ENV.step(jax.random.key(1), state, jnp.int32(WAIT), ())
        assert bool(shown.truncated) == is_last and not shown.terminated


def test_the_time_limit_truncates():
    env = hack(max_steps=3)
    state, _ = env.reset(jax.random.key(0), ())
    for t in range(1, 4):
        state, shown = env.step(jax.random.key(t), state, jnp.int32(WAIT), ())
        assert bool(shown.truncated) == (t == 3) and not shown.terminated


# The programs: what each one changes, and that it is not allowed without a target.

FULL = {"block": PROGRAM, "points": 1, "program": 4}
USED = FULL | {"siphoned": 1}
CASES = {  # name: (cells before, the cells that change, the player's numbers that change)
    "wait": ({}, {}, {}),
    "spark": (
        {(0, 2): asleep(TANK, 3), (2, 4): asleep(TANK, 3), (5, 5): asleep(TANK, 3)},
        {(0, 2): unit(TANK, 2, stunned=1)},
        {},
    ),
    "lance": (
        {(2, 0): asleep(RUNNER), (2, 1): FULL, (5, 2): asleep(TANK, 3), (3, 3): asleep(TANK, 3)},
        {(2, 0): {"credits": 1}, (5, 2): unit(TANK, 2, stunned=1)},
        {},
    ),
    "burst": (
        {(1, 1): asleep(TANK, 3), (3, 2): asleep(GHOST, 2), (2, 4): asleep(GHOST, 2)},
        {(1, 1): unit(TANK, 1, stunned=1), (3, 2): {"credits": 1}},
        {},
    ),
    "quake": (
        {(0, 0): asleep(TANK, 3), (5, 4): unit(LURKER, 2, arrival=3)},
        {(0, 0): unit(TANK, 2, stunned=1), (5, 4): unit(LURKER, 1, arrival=2)},
        {},
    ),
    "frost": (
        {
            (0, 0): unit(TANK, 3),
            (5, 4): unit(LURKER, 2, stunned=3),
            (5, 5): unit(RUNNER, arrival=3),
        },
        {
            (0, 0): unit(TANK, 3, stunned=1),
            (5, 4): unit(LURKER, 2, stunned=2),
            (5, 5): unit(RUNNER, stunned=1, arrival=2),
        },
        {},
    ),
    "snare": (
        {(2, 4): unit(TANK, 3), (1, 2): unit(GHOST, 2), (4, 3): unit(TANK, 1)},
        {(2, 4): unit(TANK, 3, stunned=3), (1, 2): unit(GHOST, 2, stunned=3)},
        {},
    ),
    "exile": (
        {(2, 1): asleep(TANK, 3) | {"energy": 2}, (5, 2): asleep(RUNNER)},
        {(2, 1): {"energy": 2}},
        {},
    ),
    "lull": (
        {(0, 0): unit(TANK, 3, arrival=1), (0, 1): unit(TANK, 3), (5, 0): unit(RUNNER, arrival=2)},
        {(0, 0): unit(TANK, 3, arrival=3), (5, 0): unit(RUNNER, arrival=3)},
        {},
    ),
    "tame": (
        {(2, 3): asleep(TANK, 3, called=1), (5, 0): asleep(RUNNER)},
        {(2, 3): unit(LURKER, 3, called=1, stunned=1)},
        {},
    ),
    "ram": ({(2, 3): FULL, (3, 2): USED, (3, 3): FULL}, {(2, 3): {}, (3, 2): {}}, {}),
    "tap": (
        {(2, 5): {"credits": 3}, (0, 2): {"energy": 2}, (1, 1): {"energy": 3}},
        {(2, 5): {}, (0, 2): {}},
        {"credits": 3, "energy": 2},
    ),
    "harvest": (
        {(2, 5): {"credits": 3}, (0, 1): {"energy": 2}, (5, 5): {"energy": 1, "credits": 1}},
        {(2, 5): {}, (0, 1): {}, (5, 5): {}},
        {"credits": 4, "energy": 3},
    ),
    "renew": ({(1, 1): USED, (3, 2): USED, (2, 4): USED}, {(1, 1): FULL, (3, 2): FULL}, {}),
    "lens": (
        {(0, 0): FULL | {"block": UNKNOWN}, (1, 1): USED | {"block": UNKNOWN}},
        {(0, 0): FULL},
        {},
    ),
    "mend": ({}, {}, {"hp": 1}),
    "coil": ({}, {}, {"siphons": 1}),
    "whet": ({}, {}, {"attack": 1}),
    "lamp": ({}, {}, {"show": 10}),
    "hush": ({}, {}, {"calm": 8}),
    "mint": ({}, {}, {"credits": 2}),
    "brew": ({}, {}, {"energy": 2}),
    "leap": (
        {(3, 3): {"pickup": 1, "credits": 1}},
        {(3, 3): {}},
        {"row": 1, "column": 1, "siphons": 1, "credits": 1},
    ),
}


def test_there_is_a_case_for_each_program():
    assert list(CASES) == list(NAMES)


@pytest.mark.parametrize("name", CASES)
def test_a_program_changes_what_its_effect_says_and_nothing_else(name):
    before, changes, gained = CASES[name]
    program = programs.PROGRAMS[NAMES[name]]
    game = game_of(before, owned=[name])
    after, _ = play(game, 5 + NAMES[name])
    wanted = look(game_of({**before, **changes}, owned=[name]))
    planes, numbers = look(after)
    if program.ends_turn:  # what sleeps in the background sleeps a turn less
        untouched = [place for place in before if place not in changes]
        for place in untouched:
            wanted[0]["stunned"][place] = max(0, int(wanted[0]["stunned"][place]) - 1)
    for field, plane in planes.items():
        np.testing.assert_array_equal(plane, wanted[0][field], field)
    paid = {"credits": -program.credits, "energy": -program.energy}
    assert numbers == {key: x + paid.get(key, 0) + gained.get(key, 0) for key, x in PLAYER.items()}
    assert int(after.clock) == int(game.clock) - program.ends_turn


LACKING = {  # a program, and what leaves it without a target
    "spark": {},
    "lance": {"cells": {(3, 3): asleep(TANK)}},
    "burst": {"cells": {(2, 4): asleep(TANK)}},
    "quake": {},
    "frost": {},
    "snare": {"cells": {(4, 3): asleep(TANK)}},
    "exile": {},
    "lull": {"cells": {(4, 3): asleep(TANK)}},
    "tame": {"cells": {(2, 3): asleep(LURKER), (5, 5): asleep(TANK)}},
    "ram": {"cells": {(3, 3): FULL}},
    "tap": {"cells": {(3, 3): {"credits": 1}}},
    "harvest": {"cells": {(3, 3): {"pickup": 1}}},
    "renew": {"cells": {(1, 1): FULL, (2, 4): USED}},
    "lens": {"cells": {(0, 0): FULL, (1, 1): USED | {"block": UNKNOWN}}},
    "mend": {"hp": 3},
    "coil": {"siphons": 9},
    "whet": {"attack": 3},
    "lamp": {"show": 1},
    "hush": {"calm": 1},
    "mint": {"credits": 15},
    "brew": {"energy": 15},
    "leap": {"cells": {(3, 3): asleep(TANK)}},
}


@pytest.mark.parametrize("name", LACKING)
def test_a_program_is_allowed_if_it_is_owned_and_can_be_paid_and_has_a_target(name):
    action, (before, _, _) = 5 + NAMES[name], CASES[name]
    program = programs.PROGRAMS[NAMES[name]]
    price = {"credits": program.credits, "energy": program.energy}
    assert action in allowed(game_of(before, owned=[name], **price))
    assert action not in allowed(game_of(before, **price)), "it is not owned"
    for key, x in price.items():
        if x:
            poor = price | {key: x - 1}
            assert action not in allowed(game_of(before, owned=[name], **poor)), "it costs more"
    assert action not in allowed(game_of(**({"owned": [name]} | LACKING[name]))), "no target"


def test_every_program_but_wait_can_lack_a_target():
    assert set(LACKING) == set(NAMES) - {"wait"}


def test_leaping_to_the_exit_leaves_the_stage():
    game = game_of(exit_at=(3, 3), owned=["leap"])
    after, gains = play(game, 5 + NAMES["leap"])
    assert gains["stage"] == 1 and look(after)[1]["stage"] == 2


# The page.


def test_the_table_of_the_page_is_the_table_of_the_code():
    rows = [{**p._asdict(), "ends": p.ends_turn} for p in programs.PROGRAMS]
    for row, program in zip(hack_twin.PROGRAMS, rows, strict=True):
        for key, x in row.items():
            value = program[key]
            assert x == (value.name.lower() if hasattr(value, "name") else value)


def test_the_page_is_short():
    assert hack_twin.PAGE.count("\n") <= 200


# The board.


@pytest.mark.slow
def test_ten_sweeps_find_every_way_on_every_board_that_is_drawn():
    corners = list(itertools.product((0, 1), (0, 1)))
    sites = [[6 * r + c for r in range(p, 6, 2) for c in range(q, 6, 2)] for p, q in corners]
    bits = np.arange(512)[:, None] >> np.arange(9) & 1
    blocks = np.zeros((4, 512, 36), bool)
    for blocked, cells in zip(blocks, sites, strict=True):
        blocked[:, cells] = bits == 1
    blocks = jnp.asarray(blocks.reshape(-1, 36).T)
    walking = jax.jit(units.walking)
    for start in range(36):
        begin = (jnp.arange(36) == start)[:, None] & ~blocks
        distance = np.asarray(walking(begin, blocks))
        reached = (distance < units.FAR) | np.asarray(blocks)
        assert reached[:, ~np.asarray(blocks)[start]].all()


def test_four_bytes_hold_a_cell():
    rng = np.random.default_rng(0)
    most = {"block": 4, "points": 4, "program": 23, "unit": 5, "hp": 4, "stunned": 4}
    most |= {"arrival": 4, "credits": 4, "energy": 4}
    planes = [rng.integers(most.get(f, 2), size=36).astype(np.uint8) for f in hack_twin.FIELDS]
    tiles, who = board.Tiles(*planes[:9]), board.Units(*planes[9:])
    again = board.unpack(board.pack(tiles, who))
    jax.tree.map(np.testing.assert_array_equal, (tiles, who), again)


# What is seen.


@pytest.mark.slow
def test_a_row_of_replay_takes_at_most_512_bytes():
    machine = make_machine(settings.from_dict(config_of_hack.get_config()), Precision())
    assert 4 * machine.layout.row.num_words <= 512
    leaves = machine.layout.row.leaves
    used = sum(x.size * x.dtype.itemsize for x in leaves)
    assert used == 157 + 4 + 3 + 4 + 28, "what is seen, reward, flags, action, mask"


def test_an_observation_is_small_and_1545_numbers_encoded():
    _, shown = ENV.reset(jax.random.key(0), ())
    assert sum(x.nbytes for x in shown.obs.values()) == 157
    encoded = ENV.spec.encode(shown.obs)
    shapes = {name: x.shape for name, x in encoded.items()}
    assert shapes == {"player": (10,), "programs": (23,), "board": (6, 6, 42)}
    assert list(shapes) == ["player", "programs", "board"]
    assert sum(x.size for x in encoded.values()) == 1545


def test_the_program_of_an_unknown_block_is_seen_while_show_lasts():
    hidden = {(0, 0): FULL | {"block": UNKNOWN}, (1, 1): FULL}
    for show in (0, 1):
        seen = view.observe(game_of(hidden, show=show))
        assert int(seen["program"][0, 0]) == 4 * show and int(seen["program"][1, 1]) == 4


def test_each_field_has_its_feature():
    features = {
        **{(("block", kind),): kind - 1 for kind in (DATA, PROGRAM, UNKNOWN)},
        (("block", DATA), ("points", 3)): 3,
        **{(("block", PROGRAM), ("program", k)): 4 + k for k in range(1, 23)},
        (("block", DATA), ("siphoned", 1)): 27,
        (("spawn", 1),): 28,
        **{(("unit", kind),): 28 + kind for kind in (RUNNER, TANK, GHOST, LURKER)},
        (("unit", TANK), ("hp", 3)): 33,
        (("unit", TANK), ("stunned", 3)): 34,
        (("unit", TANK), ("called", 1)): 35,
        (("unit", TANK), ("arrival", 3)): 36,
        (("credits", 3),): 37,
        (("energy", 3),): 38,
        (("pickup", 1),): 39,
    }
    encode = jax.jit(lambda game: view.encode(view.observe(game))["board"])
    for fields, number in features.items():
        cell = np.asarray(encode(game_of({(4, 1): dict(fields)})))[4, 1]
        base = np.asarray(encode(game_of({(4, 1): dict(fields[:-1])})))[4, 1]
        assert cell[number] == 1 and (np.delete(cell - base, number) == 0).all(), fields
    empty = np.asarray(encode(game_of()))
    assert np.argwhere(empty).tolist() == [[2, 2, 41], [5, 5, 40]], "the player and the exit"
    some = np.asarray(encode(game_of({(4, 1): {"credits": 1}})))[4, 1, 37]
    assert some == np.float32(1 / 3)


def test_the_programs_owned_are_seen():
    seen = view.encode(view.observe(game_of(owned=["spark", "frost", "leap"])))["programs"]
    assert np.flatnonzero(seen).tolist() == [0, 1, 5, 22]


def test_the_mask_shows_what_is_allowed():
    game = game_of(AROUND, owned=["mend", "spark"])
    assert set(np.flatnonzero(targets.as_flags(game.allowed)).tolist()) == allowed(game)


def test_the_picture_shows_every_feature_of_the_board():
    empty = {"player": np.zeros(10), "programs": np.zeros(23), "board": np.zeros((6, 6, 42))}
    blank = picture(empty)
    assert blank.dtype == np.uint8 and blank.shape == (6 * 24 + 24, 6 * 24, 3)
    unseen = []
    for number in range(view.NUM_FEATURES):
        board_seen = np.zeros((6, 6, 42))
        board_seen[1, 4, number] = 1
        changed = (picture(empty | {"board": board_seen}) != blank).any(-1)
        assert not changed[:24].any() and not changed[48:].any(), "only the cell's pixels"
        if not changed.any():
            unseen.append(number)
    pale = [view.STUNNED, view.CALLED, view.ARRIVAL]  # of units alone
    assert unseen == [*range(view.PROGRAM, view.SIPHONED + 1), *pale], "programs have no picture"
    assert (picture(empty | {"player": np.ones(10)}) != blank).any()
