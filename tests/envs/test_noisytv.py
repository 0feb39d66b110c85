"""The noisy television: an unchanged base, white noise, a fixed pseudo-random sequence."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtc.core.types import ArraySpec
from dtc.envs import noisytv
from dtc.envs.bandit import bandit
from dtc.envs.chain import chain
from dtc.envs.feeder import feeder_ego

BASES = {"feeder": feeder_ego(max_steps=40), "chain": chain(30), "bandit": bandit(30)}
every_base = pytest.mark.parametrize("name", BASES)
ENVS = {name: noisytv.noisytv(base) for name, base in BASES.items()}
ENV = ENVS["feeder"]
RESET, STEP = jax.jit(ENV.reset), jax.jit(ENV.step)
WHITE, PSEUDO = 5, 6  # of the Feeder's television
NUM_STEPS = 25


def episode(env, keys, actions):
    """(state, TimeStep) of a reset, and the same [T, ...] of the actions, on the host."""

    def body(state, x):
        key, action = x
        after = env.step(key, state, action, env.params)
        return after[0], after

    def go(keys, actions):
        start = env.reset(keys[0], env.params)
        return start, lax.scan(body, start[0], (keys[1:], actions))[1]

    return jax.tree.map(np.asarray, jax.jit(go)(keys, actions))


@functools.cache
def watched(name):
    """(actions, keys, `episode`) of `NUM_STEPS` steps; the first and half of the others watch."""
    num = BASES[name].spec.action.num_classes
    rng = np.random.default_rng(0)
    is_watching = (rng.random(NUM_STEPS) < 0.5) | (np.arange(NUM_STEPS) == 0)
    watch, move = rng.integers(num, num + 2, NUM_STEPS), rng.integers(0, num, NUM_STEPS)
    actions = np.where(is_watching, watch, move).astype(np.int32)
    keys = jax.random.split(jax.random.key(1), NUM_STEPS + 1)
    return actions, keys, episode(ENVS[name], keys, actions)


def assert_same(tree, expected):
    jax.tree.map(np.testing.assert_array_equal, tree, expected)


# The base.


@pytest.mark.slow
@every_base
def test_without_watching_an_episode_is_the_base_s_bit_for_bit(name):
    base, env = BASES[name], ENVS[name]
    num_steps = base.spec.max_steps
    rng = np.random.default_rng(0)
    actions = rng.integers(0, base.spec.action.num_classes, num_steps).astype(np.int32)
    keys = jax.random.split(jax.random.key(0), num_steps + 1)
    expected, found = episode(base, keys, actions), episode(env, keys, actions)
    for (base_state, base_shown), (state, shown) in zip(expected, found, strict=True):
        assert_same(state.base, base_state)
        assert_same({k: shown.obs[k] for k in base_shown.obs}, dict(base_shown.obs))
        assert_same({k: shown.info[k] for k in base_shown.info}, dict(base_shown.info))
        assert_same(shown[1:6], base_shown[1:6])
        assert (shown.obs["screen"] == noisytv.OFF).all()
        assert not shown.info["white"].any() and not shown.info["pseudo"].any()
    assert found[1][1].truncated[-1]


@pytest.mark.slow
@every_base
def test_an_episode_without_its_watching_steps_equals_the_base_s_bit_for_bit(name):
    actions, keys, (_, (state, shown)) = watched(name)
    num = BASES[name].spec.action.num_classes
    moves = actions < num
    of_moves = keys[np.append(True, moves)]
    _, (base_state, base_shown) = episode(BASES[name], of_moves, actions[moves])

    def at_moves(tree):
        return jax.tree.map(lambda x: x[moves], tree)

    assert_same(at_moves(state.base), base_state)
    assert_same(at_moves(state.shown), base_shown)
    assert_same(shown.reward[moves], base_shown.reward)


@every_base
def test_watching_leaves_the_base_unchanged_and_earns_no_reward(name):
    actions, _, (start, (state, shown)) = watched(name)
    base = BASES[name].spec
    is_watching = actions >= base.action.num_classes
    before = jax.tree.map(lambda x, y: np.append(x[None], y[:-1], 0), start, (state, shown))

    def at(tree):
        return jax.tree.map(lambda x: x[is_watching], tree)

    assert_same(at(state.base), at(before[0].base))
    for key in base.obs:
        assert_same(at(shown.obs[key]), at(before[1].obs[key]))
    assert_same(at(shown.action_mask), at(before[1].action_mask))
    assert not at(shown.reward).any() and not at(shown.first).any() and not at(shown.last).any()
    for key, x in before[0].shown.info.items():
        assert_same(
            at(shown.info[key]), at(x) if key.endswith("_fraction") else np.zeros_like(at(x))
        )
    assert (shown.info["white"] == (actions == base.action.num_classes)).all()
    assert (shown.info["pseudo"] == (actions == base.action.num_classes + 1)).all()
    assert (state.step_count == 1 + np.arange(NUM_STEPS)).all(), "time goes on"


def test_watching_takes_time_of_the_limit():
    actions = np.array([WHITE, PSEUDO, 0, 1] * 10, np.int32)
    _, (state, shown) = episode(ENV, jax.random.split(jax.random.key(0), 41), actions)
    assert shown.truncated.tolist() == [False] * 39 + [True]
    assert state.base.step_count[-1] == 20


def test_the_base_ends_the_episode_even_at_the_time_limit():
    state, _ = RESET(jax.random.key(0), ENV.params)
    empty = jnp.full((16, 16), 255, jnp.uint8)
    state = state._replace(base=state.base._replace(grid=empty), step_count=jnp.int32(39))
    _, shown = STEP(jax.random.key(0), state, jnp.int32(4), ENV.params)
    assert shown.terminated and not shown.truncated


def test_the_mask_is_the_base_s_and_allows_both_channels():
    mask = watched("chain")[2][1][1].action_mask
    assert (mask[:, :3] == watched("chain")[2][1][0].shown.action_mask).all()
    assert mask.shape == (NUM_STEPS, 5) and mask[:, 3:].all() and not mask.all()


@pytest.mark.slow
@every_base
def test_no_key_is_used_twice(name):
    env = ENVS[name]
    with jax.debug_key_reuse(True):
        state, _ = jax.jit(env.reset)(jax.random.key(3), env.params)
        jax.jit(env.step)(jax.random.key(4), state, jnp.int32(0), env.params)


def test_the_scripted_policy_is_the_base_s():
    state, _ = RESET(jax.random.key(0), ENV.params)
    expected = BASES["feeder"].scripted(jax.random.key(0), state.base, ENV.params)
    assert ENV.scripted(jax.random.key(0), state, ENV.params) == expected
    assert ENVS["chain"].scripted is None


def test_a_base_of_continuous_actions_is_refused():
    base = BASES["feeder"]
    spec = dataclasses.replace(base.spec, action=ArraySpec((2,), jnp.float32, -1, 1))
    with pytest.raises(ValueError, match=r"^base=feeder_ego has continuous actions.*Use "):
        noisytv.noisytv(base._replace(spec=spec))


# The screen.


def assert_uniform(symbol, num_classes=16):
    """Counts of `num_classes` values within five standard deviations of equal ones."""
    mean = symbol.size / num_classes
    counts = np.bincount(symbol.reshape(-1), minlength=num_classes)
    assert len(counts) == num_classes
    assert abs(counts - mean).max() < 5 * np.sqrt(mean)


def assert_like_white(screen_TS):
    """Every symbol uniform, and pairs of some: within a screen, and of neighbours in time."""
    now_TS, next_TS = screen_TS[:-1].astype(int), screen_TS[1:].astype(int)
    for i in range(noisytv.NUM_SYMBOLS):
        assert_uniform(screen_TS[:, i])
    some = (0, 1, 3, 4, 21, 63)  # of one word, of neighbours, of distant ones
    for i in some:
        for j in some:
            assert_uniform(16 * now_TS[:, i] + next_TS[:, j], 256)
            if i < j:
                assert_uniform(16 * now_TS[:, i] + now_TS[:, j], 256)


@functools.cache
def watching(action, num=8192):
    """Screens [num, 64] of one repeated action, and the states."""
    env = noisytv.noisytv(feeder_ego(max_steps=10**6))

    def body(state, key):
        state, shown = env.step(key, state, jnp.int32(action), env.params)
        return state, (shown.obs["screen"], state.place)

    start = env.reset(jax.random.key(5), env.params)[0]
    keys = jax.random.split(jax.random.key(6), num)
    return jax.tree.map(
        np.asarray, (start.place, *jax.jit(lambda: lax.scan(body, start, keys)[1])())
    )


@every_base
def test_the_screen_is_off_unless_it_is_watched(name):
    actions, _, (start, (_, shown)) = watched(name)
    is_watching = actions >= BASES[name].spec.action.num_classes
    assert 5 < is_watching.sum() < NUM_STEPS - 5
    off = shown.obs["screen"] == noisytv.OFF
    assert (off == ~is_watching[:, None]).all()
    assert (start[1].obs["screen"] == noisytv.OFF).all()


@pytest.mark.parametrize("action", [WHITE, PSEUDO])
def test_both_channels_look_uniform_and_independent(action):
    assert_like_white(watching(action)[1])


def test_white_depends_on_the_step_s_key_alone_and_does_not_move_the_sequence():
    keys = jax.random.split(jax.random.key(7), 32)
    state, other = (RESET(jax.random.key(seed), ENV.params)[0] for seed in (8, 9))
    step = jax.jit(jax.vmap(ENV.step, (0, None, None, None)))
    after, shown = step(keys, state, jnp.int32(WHITE), ENV.params)
    _, same = step(keys, other, jnp.int32(WHITE), ENV.params)
    assert_same(shown.obs["screen"], same.obs["screen"])
    assert len(np.unique(shown.obs["screen"], axis=0)) > 28
    assert (after.place == state.place).all()


def test_pseudo_depends_on_the_place_alone_and_moves_it_by_one():
    state = RESET(jax.random.key(8), ENV.params)[0]
    other = RESET(jax.random.key(9), ENV.params)[0]._replace(place=state.place)
    shown = [
        STEP(jax.random.key(seed), s, jnp.int32(PSEUDO), ENV.params)
        for seed, s in enumerate((state, state, other))
    ]
    screens = [x.obs["screen"].tolist() for _, x in shown]
    assert screens[0] == screens[1] == screens[2]
    assert all(after.place == state.place + 1 for after, _ in shown)


def test_pseudo_shows_the_hash_of_a_counter():
    start, screen_TS, place_T = watching(PSEUDO)
    for t in (0, 1, 2, 1000):
        digits = ""
        for word in range(16):
            x = (16 * (int(start) + t) + word) * 0x9E3779B9 % 2**32
            x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
            x = (x ^ x >> 13) * 0xC2B2AE35 % 2**32
            digits += f"{x ^ x >> 16:08x}"[:4]
        assert screen_TS[t].tolist() == [int(digit, 16) for digit in digits]
        assert place_T[t] == (int(start) + t + 1) % 2**32


def test_only_pseudo_moves_the_sequence_on():
    actions, _, (start, (state, _)) = watched("feeder")
    moves = state.place - np.append(start[0].place, state.place[:-1])
    assert (moves == (actions == PSEUDO)).all()


def test_every_episode_starts_elsewhere_in_the_sequence():
    keys = jax.random.split(jax.random.key(10), 4096)
    place = np.asarray(jax.jit(jax.vmap(ENV.reset, (0, None)))(keys, ENV.params)[0].place)
    assert place.dtype == np.uint32 and len(np.unique(place)) > 4090
    for shift in range(0, 32, 4):
        assert_uniform((place >> shift & 15).astype(int))


def test_the_hash_is_a_bijection_so_the_sequence_repeats_after_2_to_the_28():
    def undo(x):
        x = x ^ x >> 16
        x = x * pow(0xC2B2AE35, -1, 2**32) % 2**32
        x = x ^ x >> 13 ^ x >> 26
        x = x * pow(0x85EBCA6B, -1, 2**32) % 2**32
        x = x ^ x >> 16
        return x * pow(0x9E3779B9, -1, 2**32) % 2**32

    x = np.random.default_rng(0).integers(0, 2**32, 1000, dtype=np.uint32)
    mixed = np.asarray(noisytv.mix(jnp.asarray(x)))
    assert [undo(int(y)) for y in mixed] == x.tolist()


@pytest.mark.slow
def test_the_screen_is_encoded_one_hot_beside_the_base_s_encoding():
    _, shown = RESET(jax.random.key(0), ENV.params)
    obs = {**shown.obs, "screen": jnp.array([0, 15, 16, 3] * 16, jnp.uint8)}
    encoded = ENV.spec.encode(obs)
    assert encoded["screen"].shape == (64, 17)
    assert encoded["screen"].argmax(-1).tolist() == [0, 15, 16, 3] * 16
    base = BASES["feeder"].spec.encode({k: x for k, x in obs.items() if k != "screen"})
    assert_same({k: encoded[k] for k in base}, base)
