"""The Feeder: comparison with a NumPy Feeder, its laws, observations and the seed's functions."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtc.envs import feeder

UP, DOWN, LEFT, RIGHT, COLLECT = range(5)
KEY = jax.random.key(0)  # the Feeder's step draws nothing
PARAMS = feeder.feeder().params
EGO = feeder.feeder_ego()


def grid_of(**kinds):
    """An empty grid with some resources; `r3c4=2`: kind 2 in row 3, column 4."""
    grid = np.full((16, 16), 255, np.uint8)
    for cell, kind in kinds.items():
        row, col = cell[1:].split("c")
        grid[int(row), int(col)] = kind
    return grid


def state_of(grid, position=(3, 3), inventory=(0,) * 8):
    """A state at the start of an episode."""
    position = jnp.asarray(position, jnp.int32)
    return feeder.FeederState(
        position=position,
        grid=jnp.asarray(grid),
        inventory=jnp.asarray(inventory, jnp.int32),
        step_count=jnp.int32(0),
        cumulative_reward=jnp.float32(0.0),
        visited=feeder._visited_bit(position),
        total=jnp.int32((grid != 255).sum() + sum(inventory)),
    )


@functools.cache
def stepper(reward="first", max_steps=256):
    return jax.jit(feeder.feeder(reward, max_steps).step)


def play(state, actions, reward="first", max_steps=256):
    """Final state and the TimeSteps' rewards, infos and flags of a sequence of actions."""
    shown = []
    for action in actions:
        state, timestep = stepper(reward, max_steps)(KEY, state, jnp.int32(action), PARAMS)
        shown.append(timestep)
    return state, shown


def rewards(shown):
    return np.array([float(timestep.reward) for timestep in shown])


# A NumPy Feeder.


class Reference:
    """A reference implementation in NumPy."""

    def __init__(self, state):
        self.position, self.grid, self.inventory = (np.array(x) for x in state[:3])
        self.seen = {tuple(self.position)}
        self.total = (self.grid != 255).sum()

    def step(self, action, reward_rule):
        """(reward, terminated) of one action."""
        cell = tuple(self.position)
        if action == COLLECT:
            kind, self.grid[cell] = self.grid[cell], 255
            pays = kind != 255 and self.inventory[kind] < 16
            if pays:
                self.inventory[kind] += 1
            return float(pays), (self.grid == 255).all()
        move = {UP: (-1, 0), DOWN: (1, 0), LEFT: (0, -1), RIGHT: (0, 1)}[action]
        self.position = np.clip(self.position + move, 0, 15)
        new = tuple(self.position)
        is_entry = new != cell and self.grid[new] != 255
        if reward_rule == "first":
            is_entry &= new not in self.seen
        self.seen.add(new)
        return -0.01 + 0.1 * is_entry, False


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["first", "legacy"])
def test_the_feeder_equals_the_numpy_feeder(rule):
    env = feeder.feeder(rule)
    num_steps, num_envs = 256, 4
    rng = np.random.default_rng(0)
    actions = rng.choice(5, (num_envs, num_steps), p=[0.15, 0.15, 0.15, 0.15, 0.4])
    start = jax.vmap(env.reset, (0, None))(jax.random.split(KEY, num_envs), PARAMS)[0]
    start = start._replace(inventory=start.inventory.at[0].set(15))  # soon full

    def run(state, actions):
        def body(state, action):
            after = env.step(KEY, state, action, PARAMS)
            return after[0], after

        return lax.scan(body, state, actions)

    states, shown = jax.tree.map(np.asarray, jax.jit(jax.vmap(run))(start, actions)[1])
    for n in range(num_envs):
        reference = Reference(jax.tree.map(lambda x, n=n: x[n], start))
        total = 0.0
        for t, action in enumerate(actions[n]):
            reward, terminated = reference.step(action, rule)
            total += reward
            assert np.isclose(shown.reward[n, t], reward, atol=1e-6)
            assert shown.terminated[n, t] == terminated
            assert (states.position[n, t] == reference.position).all()
            assert (states.grid[n, t] == reference.grid).all()
            assert (states.inventory[n, t] == reference.inventory).all()
        assert np.isclose(states.cumulative_reward[n, -1], total, atol=1e-4)
        bits = np.unpackbits(states.visited[n, -1].view(np.uint8), bitorder="little")
        assert {divmod(int(c), 16) for c in np.flatnonzero(bits)} == reference.seen
        assert shown.truncated[n].tolist() == [False] * (num_steps - 1) + [True]
    assert (states.inventory[:, -1] == 16).any(), "no slot was filled: the test tests little"


# The reset.


@functools.cache
def fresh(density=0.3):
    """4096 initial states."""
    keys = jax.random.split(jax.random.key(1), 4096)
    params = feeder.FeederParams(np.float32(density))
    reset = jax.jit(jax.vmap(feeder.initial_state, (0, None)))
    return jax.tree.map(np.asarray, reset(keys, params))


def test_three_cells_in_ten_hold_a_resource_of_a_uniform_kind_wherever_they_are():
    grid = fresh().grid
    per_cell = (grid != 255).sum(0)  # 256 counts of binomial(4096, 0.3)
    assert abs(per_cell - 4096 * 0.3).max() < 5 * np.sqrt(4096 * 0.21)
    kinds = np.bincount(grid[grid != 255], minlength=8)
    assert len(kinds) == 8
    assert abs(kinds / kinds.sum() - 1 / 8).max() < 5 * np.sqrt(1 / 8 * 7 / 8 / kinds.sum())
    assert (fresh().total == (grid != 255).sum((1, 2))).all()


def test_the_start_is_uniform_and_counts_as_visited():
    cell = fresh().position @ [16, 1]
    counts = np.bincount(cell, minlength=256)  # of poisson(16), roughly
    assert len(counts) == 256 and counts.min() > 0 and counts.max() < 16 + 6 * 4
    bits = np.unpackbits(fresh().visited.view(np.uint8), axis=-1, bitorder="little")
    assert (bits.sum(-1) == 1).all() and (bits.argmax(-1) == cell).all()


@pytest.mark.parametrize("density", [0.0, 1.0])
def test_densities_0_and_1_give_an_empty_and_a_full_grid(density):
    assert ((fresh(density).grid != 255) == density).all()


# Rewards and ends.


def test_only_the_first_entry_pays_and_bouncing_earns_nothing():
    start = state_of(grid_of(r3c4=1, r3c5=2, r9c9=0))
    bouncing = [RIGHT, RIGHT, LEFT, RIGHT, LEFT]
    _, shown = play(start, bouncing)
    assert np.allclose(rewards(shown), [0.09, 0.09, -0.01, -0.01, -0.01])
    _, legacy = play(start, bouncing, "legacy")
    assert np.allclose(rewards(legacy), 0.09)
    assert [float(x.info["entered"]) for x in shown] == [1, 1, 0, 0, 0]


def test_the_start_and_a_wall_are_not_entered():
    _, shown = play(state_of(grid_of(r0c0=1), (0, 0)), [UP, LEFT, DOWN, UP])
    assert np.allclose(rewards(shown), -0.01)
    _, legacy = play(state_of(grid_of(r0c0=1), (0, 0)), [UP, LEFT, DOWN, UP], "legacy")
    assert np.allclose(rewards(legacy), [-0.01, -0.01, -0.01, 0.09]), "a wall is never an entry"


def test_collecting_pays_one_once_and_is_free_on_an_empty_cell():
    start = state_of(grid_of(r3c3=6, r9c9=0))
    state, shown = play(start, [COLLECT, COLLECT])
    assert rewards(shown).tolist() == [1, 0]
    assert state.inventory.tolist() == [0, 0, 0, 0, 0, 0, 1, 0]
    assert [float(x.info["collected"]) for x in shown] == [1, 0]
    assert [float(x.info["collected_fraction"]) for x in shown] == [0.5, 0.5]


def test_collecting_into_a_full_slot_pays_nothing_and_the_resource_is_lost():
    full = [0, 0, 16, 0, 0, 0, 0, 0]
    state, shown = play(state_of(grid_of(r3c3=2, r3c4=1), inventory=full), [COLLECT])
    assert rewards(shown).tolist() == [0] and float(shown[0].info["collected"]) == 0
    assert state.inventory.tolist() == full and state.grid[3, 3] == 255


def test_an_empty_grid_terminates_even_at_the_time_limit():
    start = state_of(grid_of(r3c3=2, r3c4=7))
    _, shown = play(start, [COLLECT, RIGHT, COLLECT], max_steps=3)
    assert [bool(x.terminated) for x in shown] == [False, False, True]
    assert not any(bool(x.truncated) for x in shown)
    assert float(shown[-1].info["collected_fraction"]) == 1
    _, shown = play(start, [COLLECT, RIGHT, RIGHT], max_steps=3)
    assert [bool(x.truncated) for x in shown] == [False, False, True]
    assert not any(bool(x.terminated) for x in shown)


# What it shows.


def test_the_view_is_the_padded_grid_around_the_agent():
    state = jax.tree.map(lambda x: x[:64], fresh())
    view = jax.vmap(feeder.view)(jax.tree.map(jnp.asarray, state))
    for grid, (row, col), seen in zip(state.grid, state.position, view, strict=True):
        padded = np.pad(np.where(grid == 255, 8, grid), 3, constant_values=9)
        assert (padded[row : row + 7, col : col + 7] == seen).all()


def test_the_flat_encoding_is_the_grid_the_inventory_and_the_position_from_zero_to_one():
    grid = grid_of(r0c0=0, r0c1=3, r15c15=7)
    obs = feeder.global_obs(state_of(grid, (15, 6), [16, 8, 0, 0, 0, 0, 0, 1]))
    flat = feeder.encode_global(obs)["flat"]
    assert flat.shape == (266,) and flat.dtype == jnp.bfloat16
    flat = np.asarray(flat, np.float32)
    assert {i: flat[i] for i in np.flatnonzero(flat[:256])} == {0: 1 / 8, 1: 4 / 8, 255: 1}
    assert flat[256:264].tolist() == [1, 0.5, 0, 0, 0, 0, 0, 1 / 16]
    assert np.allclose(flat[264:], [1, 6 / 15], rtol=2**-8)


def test_the_egocentric_encoding_is_one_hot_and_scaled():
    obs = feeder.ego_obs(state_of(grid_of(r3c4=5), (3, 3), [16, 8, 0, 0, 0, 0, 0, 0]))
    encoded = EGO.spec.encode(obs)
    assert encoded["view"].shape == (7, 7, 10) and encoded["view"].dtype == jnp.float32
    assert encoded["view"].argmax(-1).tolist() == obs["view"].tolist()
    assert np.allclose(encoded["vector"], [1, 0.5, 0, 0, 0, 0, 0, 0, 0.2, 0.2])


# The scripted policy.


@pytest.mark.slow
def test_the_shifts_of_a_tpu_cut_out_the_same_view_at_every_position():
    side = feeder.SIZE + feeder.VIEW - 1
    padded = jax.random.randint(jax.random.key(0), (side, side), 0, 10).astype(jnp.uint8)
    positions = jnp.stack(jnp.meshgrid(*2 * [jnp.arange(feeder.SIZE)]), -1).reshape(-1, 2)
    cut = jax.vmap(feeder.cut_out, (None, 0))(padded, positions)
    shifted = jax.vmap(feeder.shift_out, (None, 0))(padded, positions)
    np.testing.assert_array_equal(cut, shifted)


def test_the_scripted_policy_sees_no_further_than_its_view():
    rng = np.random.default_rng(0)
    state = jax.tree.map(lambda x: jnp.asarray(x[:256]), fresh())
    row, col = np.asarray(state.position).T[:, :, None]
    is_row, is_col = abs(np.arange(16) - row) <= 3, abs(np.arange(16) - col) <= 3
    is_seen = is_row[:, :, None] & is_col[:, None, :]
    other = jnp.where(is_seen, state.grid, rng.integers(0, 8, (256, 16, 16)).astype(np.uint8))
    act = jax.jit(jax.vmap(EGO.scripted, (None, 0, None)))
    assert (act(KEY, state, PARAMS) == act(KEY, state._replace(grid=other), PARAMS)).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "inventory", "action"),
    [
        ({"r3c3": 2, "r3c4": 1}, 0, COLLECT),
        ({"r3c3": 2, "r3c4": 1}, 16, RIGHT),  # slot 2 is full
        ({"r1c3": 0, "r6c6": 0}, 0, UP),
        ({"r6c4": 0}, 0, DOWN),
        ({"r4c0": 0}, 0, LEFT),
        ({"r3c7": 0, "r15c3": 0}, 0, COLLECT),  # nothing in view, and on the first waypoint
    ],
)
def test_the_scripted_policy_collects_or_goes_to_the_nearest_it_has_room_for(
    kinds, inventory, action
):
    state = state_of(grid_of(**kinds), inventory=[0, 0, inventory, 0, 0, 0, 0, 0])
    assert EGO.scripted(KEY, state, PARAMS) == action


def test_the_scripted_policy_collects_most_resources():
    def run(state):
        def body(state, _):
            state, shown = EGO.step(KEY, state, EGO.scripted(KEY, state, PARAMS), PARAMS)
            return state, shown.info["collected_fraction"]

        return lax.scan(body, state, None, 256)[1][-1]

    starts = jax.tree.map(lambda x: jnp.asarray(x[:32]), fresh())
    assert jax.jit(jax.vmap(run))(starts).mean() > 0.9


# The seed's forms.


def test_the_seed_forms_return_a_new_key():
    key, state = jax.jit(feeder.seed_reset)(KEY)
    again, same = jax.jit(feeder.seed_reset)(KEY)
    jax.tree.map(np.testing.assert_array_equal, state, same)
    assert key == again and key != KEY
    other = jax.jit(feeder.seed_reset)(key)[1]
    assert (other.grid != state.grid).any()
    new_key, state, reward, done = jax.jit(feeder.seed_step)(state, jnp.int32(COLLECT), key)
    assert new_key not in (key, KEY)
    assert (reward.dtype, done.dtype, reward.shape, done.shape) == (jnp.float32, bool, (), ())
    flat = feeder.state_to_observation(state)
    assert flat.shape == (266,) and flat.dtype == jnp.bfloat16


def test_a_state_of_another_shape_or_dtype_is_refused():
    state = state_of(grid_of())
    feeder.validate_env_state(state)
    jax.eval_shape(lambda s: feeder.validate_env_state(s), state)
    with pytest.raises(ValueError, match=r"state.grid=int32\[16, 16\] must be uint8\[16, 16\]"):
        feeder.validate_env_state(state._replace(grid=state.grid.astype(jnp.int32)))
    with pytest.raises(ValueError, match=r"state.position=int32\[3\] must be int32\[2\]"):
        feeder.validate_env_state(state._replace(position=jnp.zeros(3, jnp.int32)))


def test_the_seed_batch_functions_are_the_feeder():
    config = SimpleNamespace(obs_dim=266, action_dim=5, local_batch_size=3)
    reset_fn, step_fn = feeder.create_jax_env_fns(config)
    state, obs = reset_fn(KEY)
    assert obs.shape == (3, 266) and obs.dtype == jnp.bfloat16
    action = jnp.array([RIGHT, COLLECT, UP])
    after, obs, reward, done = step_fn(state, action)
    from_scores = step_fn(state, jax.nn.one_hot(action, 5))
    jax.tree.map(np.testing.assert_array_equal, (after, obs, reward, done), from_scores)
    for i in range(3):
        alone, shown = play(jax.tree.map(lambda x, i=i: x[i], state), [action[i]])
        jax.tree.map(np.testing.assert_array_equal, alone, jax.tree.map(lambda x, i=i: x[i], after))
        assert shown[0].reward == reward[i] and shown[0].last == done[i]
        assert (feeder.state_to_observation(alone) == obs[i]).all()


@pytest.mark.parametrize(("name", "value", "want"), [("obs_dim", 64, 266), ("action_dim", 8, 5)])
def test_a_config_with_other_dimensions_is_refused(name, value, want):
    config = SimpleNamespace(**{"obs_dim": 266, "action_dim": 5, name: value})
    with pytest.raises(ValueError, match=f"{name}={value} does not match .*Use {name}={want}"):
        feeder.create_jax_env_fns(config)
