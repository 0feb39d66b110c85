"""The contract of every environment, and the laws of the two diagnostic ones."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtc.envs import catalog
from dtc.envs.chain import ChainState
from tests.envs.contract import shapes, traced

ENVS = {name: catalog.make(name) for name in catalog.ENVIRONMENTS} | {
    "chain, terminates": catalog.make("chain", length=7, terminates=True),
    "feeder, legacy": catalog.make("feeder", reward="legacy", max_steps=9, density=0.02),
}
WITH_ARGUMENT = ["hack/unmasked", "scaled/0.001/chain"]
WITH_ARGUMENT += [f"gymnax/{x}" for x in ("CartPole-v1", "Pendulum-v1", "Breakout-MinAtar")]
ENVS |= {name: catalog.make(name) for name in WITH_ARGUMENT}
every_environment = pytest.mark.parametrize("name", ENVS)
NUM_STEPS = 500


def allowed(key, spec, mask):
    """A random action that the mask allows."""
    if not spec.is_discrete:
        low, high = spec.action.low, spec.action.high
        return jax.random.uniform(key, spec.action.shape, jnp.float32, low, high)
    logits = jnp.zeros(spec.action.num_classes) if mask is None else jnp.where(mask, 0.0, -1e9)
    return jax.random.categorical(key, logits).astype(jnp.int32)


@functools.cache
def rollout(name):
    """(state, TimeStep) of a reset and 500 calls, leaves [1 + T, ...], and the actions [T, ...].

    A call after an end is a reset.
    """
    env = ENVS[name]

    def body(carry, key):
        state, shown = carry
        act_key, step_key, reset_key = jax.random.split(key, 3)
        action = allowed(act_key, env.spec, shown.action_mask)
        renewed = env.reset(reset_key, env.params)
        stepped = env.step(step_key, state, action, env.params)
        after = jax.tree.map(lambda x, y: jnp.where(shown.last, x, y), renewed, stepped)
        return after, (*after, action)

    start = jax.jit(env.reset)(jax.random.key(0), env.params)
    keys = jax.random.split(jax.random.key(1), NUM_STEPS)
    state, shown, action = jax.jit(lambda c: lax.scan(body, c, keys)[1])(start)
    rows = jax.tree.map(lambda x, y: np.append(x[None], y, 0), start, (state, shown))
    return *rows, np.asarray(action)


@functools.cache
def compiled(name):
    """(reset, step) of one environment."""
    return jax.jit(ENVS[name].reset), jax.jit(ENVS[name].step)


def is_compact(env):
    """Whether no leaf of the observation is a float."""
    return not any(jnp.issubdtype(x.dtype, jnp.floating) for x in env.spec.obs.values())


close = functools.partial(np.testing.assert_allclose, rtol=4 * np.finfo(np.float32).eps)


@pytest.mark.slow
@every_environment
@pytest.mark.parametrize("x64", [False, True])
def test_reset_and_step_match_the_spec_at_any_default_precision(name, x64):
    start, after, encoded = traced(ENVS[name], x64)
    assert shapes(start) == shapes(after)
    assert all(x.ndim >= 1 and jnp.issubdtype(x.dtype, jnp.floating) for x in encoded.values())


@pytest.mark.slow
@every_environment
def test_observations_stay_in_their_range(name):
    for key, spec in ENVS[name].spec.obs.items():
        x = rollout(name)[1].obs[key]
        low, high = (0, spec.num_classes - 1) if spec.num_classes else (spec.low, spec.high)
        assert low is None or (np.asarray(low) <= x).all(), key
        assert high is None or (x <= np.asarray(high)).all(), key


@pytest.mark.slow
@every_environment
def test_episodes_begin_with_first_and_end_once_and_in_time(name):
    env, shown = ENVS[name], rollout(name)[1]
    assert not (shown.terminated & shown.truncated).any()
    assert (shown.first[1:] == shown.last[:-1]).all(), "a call after an end, and no other, is first"
    assert not shown.last[shown.first].any() and not shown.reward[shown.first].any()
    starts = np.flatnonzero(shown.first)
    for start, after in itertools.pairwise(starts):
        num_steps = after - start - 1
        assert 1 <= num_steps <= env.spec.max_steps
        if shown.truncated[after - 1]:
            assert num_steps == env.spec.max_steps, "a time limit is the only truncation"
    assert shown.last.any() and np.isfinite(shown.reward).all() and np.isfinite(shown.cost).all()
    assert all(np.isfinite(x).all() for x in shown.info.values())


@every_environment
def test_a_mask_always_allows_something(name):
    mask = rollout(name)[1].action_mask
    assert (mask is not None) == ENVS[name].spec.has_action_mask
    if mask is not None:
        assert mask.any(-1).all() and not mask.all(), "and forbids something, or it tests nothing"


@pytest.mark.slow
@every_environment
def test_the_same_key_gives_the_same_bits_and_none_is_used_twice(name):
    env = ENVS[name]
    with jax.debug_key_reuse(True):
        state, shown = jax.jit(env.reset)(jax.random.key(3), env.params)
        jax.jit(env.step)(jax.random.key(4), state, env.spec.action.zeros(), env.params)
    reset, step = compiled(name)
    again = reset(jax.random.key(3), env.params)
    jax.tree.map(np.testing.assert_array_equal, (state, shown), again)
    action = jnp.ones_like(env.spec.action.zeros())
    twice = [step(jax.random.key(4), state, action, env.params) for _ in range(2)]
    jax.tree.map(np.testing.assert_array_equal, *twice)


@pytest.mark.slow
@every_environment
def test_a_batch_equals_its_single_environments(name):
    env = ENVS[name]
    reset, step = compiled(name)
    keys = jax.random.split(jax.random.key(5), 6)
    actions = jax.vmap(lambda key: allowed(key, env.spec, None))(keys[:3])
    states, shown = jax.jit(jax.vmap(env.reset, (0, None)))(keys[:3], env.params)
    batch = jax.jit(jax.vmap(env.step, (0, 0, 0, None)))(keys[3:], states, actions, env.params)
    for i in range(3):
        alone = reset(keys[i], env.params)
        one = step(keys[3 + i], alone[0], actions[i], env.params)
        together = jax.tree.map(lambda x, i=i: x[i], ((states, shown), batch))
        # Vector and scalar code round sines differently.
        equal = np.testing.assert_array_equal if is_compact(env) else close
        jax.tree.map(equal, (alone, one), together)


@pytest.mark.slow
@every_environment
def test_encoding_is_finite_and_one_hot_where_it_has_a_grid(name):
    obs = rollout(name)[1].obs
    for leaf, x in jax.jit(jax.vmap(ENVS[name].spec.encode))(obs).items():
        x = np.asarray(x, np.float32)
        assert np.isfinite(x).all()
        assert not is_compact(ENVS[name]) or ((x >= 0).all() and (x <= 1).all())
        if x.ndim > 2 and leaf not in ENVS[name].spec.planes:
            assert (x.sum(-1) == 1).all() and (x.max(-1) == 1).all()


@pytest.mark.slow
@every_environment
def test_different_observations_are_encoded_differently(name):
    obs = rollout(name)[1].obs
    encoded = jax.jit(jax.vmap(ENVS[name].spec.encode))(obs)

    def distinct(tree):
        rows = [np.asarray(x, np.float32).reshape(NUM_STEPS + 1, -1) for x in jax.tree.leaves(tree)]
        return len(np.unique(np.concatenate(rows, 1), axis=0))

    assert distinct(encoded) == distinct(obs) > 1


@pytest.mark.slow
@every_environment
def test_the_scripted_policy_acts_within_the_action_space(name):
    env = ENVS[name]
    if env.scripted is None:
        return
    key = jax.random.key(0)
    action = jax.jit(jax.vmap(env.scripted, (None, 0, None)))(key, rollout(name)[0], env.params)
    spec = env.spec.action
    assert action.dtype == spec.dtype and action.shape[1:] == spec.shape
    low, high = (0, spec.num_classes - 1) if spec.num_classes else (spec.low, spec.high)
    assert (low <= action).all() and (action <= high).all()


# The chain: a return that is known.


@pytest.mark.parametrize("name", ["chain", "chain, terminates"])
def test_every_step_of_the_chain_pays_one_until_its_length(name):
    shown = rollout(name)[1]
    assert (shown.reward == ~shown.first).all()
    assert (shown.last == (shown.obs["step"] == ENVS[name].spec.max_steps)).all()
    assert shown.terminated.any() == (name == "chain, terminates")


def test_the_chain_moves_as_its_mask_allows():
    step = compiled("chain")[1]
    for cell, moves in enumerate([(0, 1, 0), (0, 0, -1)] * 2 + [(0, 1, 0)]):
        state = ChainState(jnp.int32(cell), jnp.int32(0))
        for action, move in enumerate(moves):
            after, shown = step(jax.random.key(0), state, jnp.int32(action), ())
            assert after.cell == (cell + move) % 5
            is_even = after.cell % 2 == 0
            assert shown.action_mask.tolist() == [True, is_even, not is_even]


# The bandit: what can be known, and what cannot.


def test_the_dull_arm_always_shows_the_same_and_the_noisy_arm_everything():
    env = ENVS["bandit"]
    state, _ = env.reset(jax.random.key(0), env.params)
    pull = jax.jit(jax.vmap(env.step, (0, None, 0, None)))
    arm_N = jnp.arange(4000) % 2
    _, shown = pull(jax.random.split(jax.random.key(1), 4000), state, arm_N, env.params)
    symbol_N = np.asarray(shown.obs["symbol"])
    assert set(symbol_N[0::2]) == {1} and set(symbol_N[1::2]) == set(range(2, 18))
    counts = np.bincount(symbol_N[1::2])[2:]
    assert abs(counts - 125).max() < 5 * np.sqrt(125)
    assert not shown.reward.any()


# The catalog.


def test_a_mistyped_environment_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError) as error:
        catalog.make("feedr")
    assert str(error.value) == (
        "env.name=feedr is not an environment; did you mean feeder? "
        f"Known: {', '.join(catalog.ENVIRONMENTS)}, hack/unmasked, "
        "deepsea/SIZE, tmaze/LENGTH, scaled/FACTOR/NAME, gymnax/ID, jumanji/ID, "
        "brax/ID, craftax/ID, navix/ID, xminigrid/ID, playground/ID, gymnasium/ID, "
        "FILE.py:FUNCTION."
    )
    with pytest.raises(ValueError, match=r"env.name=zzz is not an environment\. Known: feeder"):
        catalog.make("zzz")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("deepsea/101", "env.name=deepsea/101: size=101 must be 2 to 100. Use 10."),
        ("deepsea/ten", "env.name=deepsea/ten: size=ten must be 2 to 100. Use 10."),
        ("tmaze/0", "env.name=tmaze/0: length=0 must be 1 to 1000 steps. Use 10."),
        ("scaled/-1/chain", "env.name=scaled/-1/chain: factor=-1 must be a number above 0. Use "),
        ("scaled/nan/chain", "env.name=scaled/nan/chain: factor=nan must be a number above 0."),
        ("scaled/2/chian", "env.name=scaled/2/chian: env.name=chian is not an environment; did "),
        (
            "gymnax/CartPole-v2",
            "env.name=gymnax/CartPole-v2: not an environment of gymnax; "
            "did you mean gymnax/CartPole-v1?",
        ),
        (
            "hack/8",
            "env.name=hack/8: size=8 must be 6, the only board there is. Use hack, or "
            "hack/unmasked.",
        ),
        ("gymnax", "env.name=gymnax: not an environment of gymnax; it has CartPole-v1, "),
        ("chain/9", "env.name=chain/9 is not an environment; did you mean chain? Known: feeder, "),
    ],
)
def test_a_wrong_argument_after_the_slash_is_refused_in_one_sentence(name, message):
    with pytest.raises(ValueError) as error:
        catalog.find(name)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_the_text_after_the_slash_is_the_argument():
    assert catalog.make("deepsea/20").spec.max_steps == 20
    assert catalog.make("deepsea").spec.max_steps == 10
    assert catalog.make("tmaze/30").spec.max_steps == 31
    assert ENVS["gymnax/Pendulum-v1"].spec.name == "gymnax/Pendulum-v1"


def test_every_environment_has_its_name_in_the_catalog():
    for name in catalog.ENVIRONMENTS:
        assert ENVS[name].spec.name == name


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("feeder", {"reward": "second"}),
        ("feeder_ego", {"max_steps": 0}),
        ("chain", {"length": 256}),
        ("bandit", {"pulls": 0}),
        ("bandit", {"num_symbols": 255}),
        ("deepsea", {"size": 1}),
        ("keydoor", {"max_steps": 0}),
        ("tmaze", {"length": 1001}),
        ("rooms", {"max_steps": 0}),
        ("hack", {"max_steps": 0}),
        ("noisytv", {"max_steps": 0}),
    ],
)
def test_an_invalid_setting_is_refused_with_its_name_and_value(name, setting):
    [(key, value)] = setting.items()
    with pytest.raises(ValueError, match=f"^{key}={value} .*Use "):
        catalog.make(name, **setting)


PLACES = {  # row and column in a state
    "feeder": lambda s: (s.position[:, 0], s.position[:, 1]),
    "feeder_ego": lambda s: (s.position[:, 0], s.position[:, 1]),
    "noisytv": lambda s: (s.base.position[:, 0], s.base.position[:, 1]),
    "keydoor": lambda s: np.unravel_index(s.id, (13, 13, 2, 2))[:2],
    "deepsea": lambda s: (s.row, s.column),
    "rooms": lambda s: (np.floor(8 - 8 * s.position[:, 1]), np.floor(8 + 8 * s.position[:, 0])),
    "hack": lambda s: (s.game.player[:, 0], s.game.player[:, 1]),
}


def test_the_grid_tasks_have_a_map():
    assert {name for name in catalog.ENVIRONMENTS if ENVS[name].spec.map} == set(PLACES)


@pytest.mark.parametrize("name", PLACES)
def test_the_map_places_an_observation_where_its_state_is(name):
    state, shown, _ = rollout(name)
    shape, cell_fn = ENVS[name].spec.map
    row, column = cell_fn(
        jax.tree.map(lambda x: np.asarray(x)[:500].reshape(5, 100, *x.shape[1:]), shown.obs)
    )
    row, column = row.reshape(-1), column.reshape(-1)
    true_row, true_column = (np.asarray(x)[:500] for x in PLACES[name](state))
    assert (row == true_row).all()
    is_on_map = row < shape[0]  # what lies below deepsea's last row is not on it
    assert (column == true_column)[is_on_map].all() and (column < shape[1]).all()
    assert is_on_map[~shown.last[:500]].all()
    assert len(set(zip(row.tolist(), column.tolist(), strict=True))) > 5
