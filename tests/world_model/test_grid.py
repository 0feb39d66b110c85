"""The trunk with cells: same weights in every cell, and nothing but neighbours and the whole."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.core.nets import Precision
from dtc.core.types import ArraySpec, EnvSpec
from dtc.world_model import grid, losses, rssm
from dtc.world_model.ensemble import Member
from dtc.world_model.latent import Cells, Feature
from tests import small_trunk

pytestmark = pytest.mark.slow

SIDE, FEATURES, B = 4, 3, 2
CFG = dataclasses.replace(small_trunk.CFG, cell_units=2)
CELLS = Cells(SIDE, SIDE, CFG.cell_units, entries=5)
SPEC = EnvSpec(
    name="board",
    obs={
        "board": ArraySpec((SIDE, SIDE, FEATURES), jnp.float32),
        "vector": ArraySpec((5,), jnp.float32),
    },
    action=ArraySpec((), jnp.int32, num_classes=3),
    max_steps=9,
    encode=dict,
    has_action_mask=True,
)
TRUNK = grid.make_trunk(CFG, SPEC, Precision())
PARAMS = rssm.init(jax.random.key(0), TRUNK)
RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


BOARD = np.eye(FEATURES, dtype=np.float32)[RNG.integers(FEATURES, size=(B, SIDE, SIDE))]
VECTOR, MASK = normal(B, 5), RNG.random((B, 3)) < 0.5
ACTION = np.eye(3, dtype=np.float32)[[0, 2]]
STATE = normal(B, CFG.deter)
STATE_AND_CELLS = np.concatenate([STATE, normal(B, CELLS.num * CFG.cell_units)], -1)
CODES = np.eye(TRUNK.cfg.classes, dtype=np.float32)[RNG.integers(4, size=(B, TRUNK.cfg.groups))]


def without(*names):
    """The parameters with some networks of the core silenced, which tell cells of the whole."""
    core = {name: jax.tree.map(jnp.zeros_like, PARAMS["core"][name]) for name in names}
    return {**PARAMS, "core": {**PARAMS["core"], **core}}


def apply(method, *args, params=PARAMS):
    return TRUNK.apply({"params": params}, *args, method=method)


def latent(cells):
    """h of states of the cells [B, cells, units]."""
    return np.concatenate([STATE, cells.reshape(B, -1)], -1)


def step(board=BOARD, cells=None, codes=CODES, params=PARAMS):
    """(next state of each cell, its logits of q [B, cells, 2 C]) after an observation."""
    cells = np.zeros((B, CELLS.num, CFG.cell_units), np.float32) if cells is None else cells
    tokens, action = apply("embed", {"board": board, "vector": VECTOR, "action_mask": MASK}, ACTION)
    inputs = latent(cells), codes.reshape(B, -1), action, tokens
    deter, logits = apply("observe_step", *inputs, params=params)
    logits = np.asarray(logits).reshape(codes.shape)[:, : CELLS.groups]
    return np.asarray(CELLS.split_deter(deter)[0]), logits.reshape(B, CELLS.num, -1)


def test_latents_have_room_for_the_cells():
    assert TRUNK.cfg.deter == CFG.deter + CELLS.num * CFG.cell_units
    assert TRUNK.cfg.groups == CFG.groups + 2 * CELLS.num + 5
    assert TRUNK.cells == CELLS
    deter = normal(B, TRUNK.cfg.deter)
    cells, codes, state, rest = CELLS.split(Feature(deter, CODES))
    np.testing.assert_array_equal(np.concatenate([state, cells.reshape(B, -1)], -1), deter)
    np.testing.assert_array_equal(codes, CODES[:, : 2 * CELLS.num].reshape(B, CELLS.num, -1))
    np.testing.assert_array_equal(rest, CODES[:, 2 * CELLS.num :].reshape(B, -1))


@pytest.mark.parametrize("cfg", [small_trunk.CFG, CFG])
def test_without_cells_or_a_grid_the_trunk_is_the_plain_one(cfg):
    spec = SPEC if not cfg.cell_units else dataclasses.replace(SPEC, obs={"x": SPEC.obs["vector"]})
    trunk = grid.make_trunk(cfg, spec, Precision())
    assert type(trunk) is rssm.Trunk
    assert trunk.cfg == cfg


def test_the_code_of_a_cell_reads_that_cell():
    other = BOARD.copy()
    other[:, 1, 2] = np.roll(other[:, 1, 2], 1, -1)
    _, before = step()
    _, after = step(other)
    changed = (before != after).any((0, 2)).reshape(SIDE, SIDE)
    assert changed[1, 2]
    assert changed.sum() == 1


def test_a_code_reaches_the_neighbours_and_its_row_and_column_in_one_step():
    other = CODES.copy()
    other[:, 10] = np.roll(other[:, 10], 1, -1)  # of the cell in row 1, column 1
    params = without("to_cells", "pointer")
    action = apply("embed", {"board": BOARD, "vector": VECTOR, "action_mask": MASK}, ACTION)[1]
    cells = normal(B, CELLS.num, CFG.cell_units)

    def after(codes):
        inputs = latent(cells), codes.reshape(B, -1), np.eye(3)[[0, 2]]
        deter, _ = apply("imagine_step", *inputs, params=params)
        return np.asarray(CELLS.split_deter(deter)[0])

    assert action.shape == (B, CFG.hidden)
    changed = (after(CODES) != after(other)).any((0, 2)).reshape(SIDE, SIDE)
    expected = np.zeros((SIDE, SIDE), bool)
    expected[:3, :3] = expected[1] = expected[:, 1] = True
    np.testing.assert_array_equal(changed, expected)


def test_a_cell_sees_each_direction_and_what_is_nearest_is_loudest():
    height, width, size = 3, 4, 2
    x = normal(height, width, size)
    seen = np.asarray(Cells(height, width, 1).sights(x.reshape(-1, size)))
    for row in range(height):
        for column in range(width):
            lines = (
                [x[r, column] for r in range(row - 1, -1, -1)],
                [x[r, column] for r in range(row + 1, height)],
                [x[row, c] for c in range(column - 1, -1, -1)],
                [x[row, c] for c in range(column + 1, width)],
            )
            sums = [sum((y / 3**n for n, y in enumerate(line)), np.zeros(size)) for line in lines]
            cell = row * width + column
            np.testing.assert_allclose(seen[cell], np.concatenate(sums), rtol=1e-5, atol=1e-6)


def test_all_cells_have_the_same_weights():
    """Inside the board, what a cell learns does not depend on where it is."""
    board = np.zeros((B, SIDE, SIDE, FEATURES), np.float32)
    cells = np.zeros((B, SIDE, SIDE, CFG.cell_units), np.float32)
    codes = np.array(CODES)
    codes[:, : CELLS.groups] = 0.0  # the other cells are silent
    found = []
    for row, column in ((1, 1), (1, 2), (2, 1)):
        here, state, code = board.copy(), cells.copy(), codes.copy()
        here[:, row, column, 1], state[:, row, column] = 1.0, 0.5
        code[:, 2 * (row * SIDE + column)] = np.eye(4, dtype=np.float32)[2]
        moved, logits = step(
            here, state.reshape(B, CELLS.num, -1), codes, params=without("pointer")
        )
        found.append((logits[:, row * SIDE + column], moved[:, row * SIDE + column]))
    for logits, moved in found[1:]:
        np.testing.assert_allclose(logits, found[0][0], rtol=0, atol=0.02)
        np.testing.assert_allclose(moved, found[0][1], rtol=0, atol=0.02)


def test_at_first_the_prior_expects_that_codes_stay():
    _, log_p = apply("imagine_step", STATE_AND_CELLS, CODES.reshape(B, -1), ACTION)
    stays = np.exp(log_p)[CODES > 0]
    assert stays.mean() > 0.6  # of four classes
    apart = np.roll(CODES, 1, -1)
    assert np.exp(log_p)[apart > 0].mean() < 0.2


def test_a_group_moves_by_a_mixture_of_matrices():
    groups, classes, events = 3, 4, grid.EVENTS
    out = normal(2, groups * (classes + events))
    z = np.eye(classes, dtype=np.float32)[RNG.integers(classes, size=(2, groups))]
    kernel = normal(groups, classes, events * classes)
    moves = grid.Moves(groups, classes, Precision())
    found = moves.apply({"params": {"kernel": kernel}}, out, z)
    for n in range(2):
        for s in range(groups):
            own = out[n].reshape(groups, -1)[s]
            expected = own[:classes].copy()
            for j in range(events):
                matrix = kernel[s][:, j * classes : (j + 1) * classes]
                expected += (own[classes + j] + (j == 0)) * (z[n, s] @ matrix)
            np.testing.assert_allclose(found[n, s], expected, rtol=1e-4, atol=1e-5)


def test_the_whole_names_cells():
    pointer = grid.Pointer(Precision(), CELLS)
    x = normal(B, 7)
    named, _ = pointer.init_with_output(jax.random.key(0), x)
    assert named.shape == (B, CELLS.num, grid.POINTERS)
    np.testing.assert_allclose(named.sum(1), 1.0, rtol=1e-5)
    assert np.ptp(named) > 0.01


def test_an_action_needs_the_whole_and_a_target():
    x, y = normal(50), normal(50)
    p = small_trunk.sigmoid(x) * small_trunk.sigmoid(y)
    np.testing.assert_allclose(grid.both(x, y), np.log(p / (1 - p)), rtol=1e-4, atol=1e-5)


def test_each_entry_of_a_vector_has_a_code_of_its_own_and_is_decoded_from_it():
    vector = VECTOR.copy()
    vector[:, 2] += 1.0
    logits = [
        apply("embed", {"board": BOARD, "vector": x, "action_mask": MASK}, ACTION)[0]
        for x in (VECTOR, vector)
    ]
    tokens = np.stack(logits)
    codes = apply("observe_step", STATE_AND_CELLS, CODES.reshape(B, -1), normal(B, CFG.hidden),
                  tokens[0])[1]  # fmt: skip
    other = apply("observe_step", STATE_AND_CELLS, CODES.reshape(B, -1), normal(B, CFG.hidden),
                  tokens[1])[1]  # fmt: skip
    changed = (np.asarray(codes) != other).any(0).reshape(-1, CFG.classes).any(-1)
    of_entries = changed[CELLS.groups : CELLS.groups + CELLS.entries]
    np.testing.assert_array_equal(of_entries, np.arange(CELLS.entries) == 2)
    assert not changed[: CELLS.groups].any()


def observed(params):
    """(posterior states, encoded observations, rows) of the sequences, with random boards."""
    rng, sequence, rows = np.random.default_rng(1), small_trunk.SEQUENCE, small_trunk.ROWS
    T, groups = small_trunk.T, TRUNK.cfg.groups
    boards = np.eye(FEATURES, dtype=np.float32)[rng.integers(FEATURES, size=(T, B, SIDE, SIDE))]
    vector = rng.normal(size=(T, B, 5)).astype(np.float32)
    obs = {"board": boards, "vector": vector, "action_mask": rows.action_mask}
    deter = rng.normal(size=(B, TRUNK.cfg.deter)).astype(np.float32)
    context = small_trunk.Latent(deter, np.zeros((B, groups), np.uint8))
    uniform = rng.random((T, B, groups)).astype(np.float32)
    seen = rssm.observe(TRUNK, params, obs, sequence.action, sequence.first, context, uniform)
    return seen, obs, rows


def test_the_mask_is_also_learned_from_codes_of_the_prior_but_not_in_first_rows():
    seen, obs, rows = observed(PARAMS)
    first = np.arange(small_trunk.T)[:, None] % 3 == np.arange(B) % 3
    terms = losses.losses(TRUNK, PARAMS, seen, obs, rows._replace(first=first))
    feature = seen._replace(stoch=seen.expected).feature(Precision())
    p = jax.nn.sigmoid(apply("heads", feature)[2])
    theirs = -np.log(np.where(rows.action_mask, p, 1 - p)).sum(-1)
    np.testing.assert_allclose(terms["mask_expected"], np.where(first, 0, theirs), rtol=1e-4)
    assert 0 < first.sum() < first.size


def test_the_losses_have_a_term_for_each_leaf_and_reach_every_parameter():
    def loss(params):
        terms = losses.losses(TRUNK, params, *observed(params))
        return losses.total(terms, TRUNK), terms

    grads, terms = jax.grad(loss, has_aux=True)(PARAMS)
    masks = {"mask", "mask_expected"}
    assert {"obs/board", "obs/vector", "reward", "cont", "dyn", "rep"} | masks == set(terms)
    still = [
        jax.tree_util.keystr(path)
        for path, g in jax.tree_util.tree_leaves_with_path(grads)
        if not np.any(g)
    ]
    zero_heads = [name for name in still if "'reward'" in name or "scale" in name]
    assert still == zero_heads


def test_a_board_may_be_all_there_is_to_see():
    spec = dataclasses.replace(SPEC, obs={"board": SPEC.obs["board"]}, has_action_mask=False)
    alone = grid.make_trunk(CFG, spec, Precision())
    params, groups = rssm.init(jax.random.key(0), alone), alone.cfg.groups
    before = small_trunk.Latent(normal(B, alone.cfg.deter), np.zeros((B, groups), np.uint8))
    uniform, is_first = RNG.random((B, groups), np.float32), np.zeros(B, bool)
    after = rssm.observe_step(alone, params, before, ACTION, {"board": BOARD}, is_first, uniform)
    assert np.isfinite(after.deter).all() and after.ids.shape == (B, groups)


def test_a_member_predicts_all_groups():
    member = Member(TRUNK.cfg, Precision(), TRUNK.cells)
    stoch = CODES
    deter = latent(normal(B, CELLS.num, CFG.cell_units))
    log_p, _ = member.init_with_output(jax.random.key(1), deter, stoch, ACTION)
    assert log_p.shape == (B, TRUNK.cfg.groups, TRUNK.cfg.classes)
    np.testing.assert_allclose(np.exp(log_p).sum(-1), 1.0, rtol=1e-5)
