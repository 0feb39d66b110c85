"""Environments behind gymnasium's methods pass gymnasium's own checks."""

import functools
import warnings

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from dtc.core.types import ArraySpec
from dtc.envs import catalog
from dtc.wrappers.gymnasium import space_of, to_gymnasium, to_gymnasium_vec

make = functools.cache(catalog.make)
OURS = ["feeder", "chain", "hack", "gymnax/Pendulum-v1", "gymnax/Breakout-MinAtar"]


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_gymnasiums_checker_passes_without_a_warning(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # gymnasium's own Pendulum and CartPole have these two: boxes as wide as the game's.
        warnings.filterwarnings("ignore", ".*Box (action|observation) space.*infinity")
        warnings.filterwarnings("ignore", ".*For Box action spaces, we recommend")
        check_env(to_gymnasium(make(name)), skip_render_check=True)


def test_gymnasiums_checker_draws_an_environment_that_has_a_picture():
    name = "dtc/Hack-v0"  # a registered one, of which the checker makes one for each render mode
    if name not in gymnasium.registry:
        gymnasium.register(name, lambda render_mode=None: to_gymnasium(make("hack"), render_mode))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(name, render_mode="rgb_array").unwrapped)


def test_the_numbers_are_those_of_the_environment():
    env, base = to_gymnasium(make("chain")), make("chain")
    obs, info = env.reset(seed=3)
    total, mask = 0.0, info["action_mask"]
    for t in range(base.spec.max_steps):
        assert mask.dtype == np.int8 and mask.any()
        action = env.action_space.sample(mask)
        obs, reward, terminated, truncated, info = env.step(action)
        assert obs in env.observation_space and obs["step"] == t + 1
        total, mask = total + reward, info["action_mask"]
    assert total == base.spec.max_steps and truncated and not terminated


def test_a_seed_fixes_an_episode_and_the_next_one_differs():
    env = to_gymnasium(make("feeder"))
    first = env.reset(seed=1)[0]
    second = env.reset()[0]
    again = env.reset(seed=1)[0]
    assert all((first[k] == again[k]).all() for k in first)
    assert any((first[k] != second[k]).any() for k in first)


def test_a_picture_is_drawn_where_there_is_one():
    env = to_gymnasium(make("hack"), render_mode="rgb_array")
    assert env.render() is None
    env.reset(seed=0)
    image = env.render()
    assert image.dtype == np.uint8 and image.ndim == 3 and image.std() > 0
    with pytest.raises(
        ValueError, match=r"^render_mode=rgb_array is not one of chain\. Use None\.$"
    ):
        to_gymnasium(make("chain"), render_mode="rgb_array")


def test_a_step_needs_a_reset():
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        to_gymnasium(make("chain")).step(0)


@pytest.mark.parametrize(
    ("spec", "space"),
    [
        (ArraySpec((), jnp.uint8, num_classes=4), gymnasium.spaces.Discrete(4)),
        (ArraySpec((2,), jnp.bool_), gymnasium.spaces.MultiBinary((2,))),
        (ArraySpec((2,), jnp.float32), gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)),
        (
            ArraySpec((2,), jnp.float32, (-1.0, -2.0), 3.0),
            gymnasium.spaces.Box(np.float32([-1, -2]), np.float32([3, 3]), (2,), np.float32),
        ),
        (ArraySpec((2,), jnp.uint8, 0, 255), gymnasium.spaces.Box(0, 255, (2,), np.uint8)),
    ],
)
def test_a_spec_is_a_space(spec, space):
    assert space_of(spec) == space


# N environments.


def walk(env, num_steps, seed=0):
    """Everything that N environments with random allowed actions return."""
    rng = np.random.default_rng(seed)
    obs, info = env.reset(seed=seed)
    rows = [(obs, None, None, None, info)]
    for _ in range(num_steps):
        scores = rng.random((env.num_envs, env.single_action_space.n))
        mask = rows[-1][-1].get("action_mask", np.ones_like(scores))
        rows.append(env.step(np.where(mask, scores, -1).argmax(-1)))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_gymnasiums_statistics_count_the_episodes(mode):
    base = catalog.make("chain", length=4)
    env = RecordEpisodeStatistics(to_gymnasium_vec(base, 3, mode))
    found = [row[-1]["episode"] for row in walk(env, 12)[1:] if "episode" in row[-1]]
    assert len(found) == (3 if mode == "same_step" else 2), "the next step's reset takes a call"
    assert all((x["r"] == 4).all() and (x["l"] == 4).all() for x in found)


def test_the_same_step_shows_the_new_episode_and_tells_how_the_old_one_ended():
    env = to_gymnasium_vec(catalog.make("chain", length=4), 3, "same_step")
    assert env.metadata["autoreset_mode"] == gymnasium.vector.AutoresetMode.SAME_STEP
    for t, (obs, _, _, truncated, info) in enumerate(walk(env, 9)):
        assert obs in env.observation_space
        assert (obs["step"] == t % 4).all() and ("final_obs" in info) == (t > 0 and t % 4 == 0)
        if "final_obs" in info:
            assert truncated.all() and (info["final_obs"]["step"] == 4).all()
            assert info["_final_obs"].all() and info["final_info"]["action_mask"].shape == (3, 3)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_seed_fixes_all_episodes_whatever_was_played_before(mode):
    env = to_gymnasium_vec(make("rooms"), 3, mode)
    first, other, again = env.reset(seed=1)[0], env.reset()[0], env.reset(seed=1)[0]
    assert all((first[k] == again[k]).all() for k in first)
    assert any((first[k] != other[k]).any() for k in first)


@pytest.mark.slow
def test_without_reset_only_those_of_the_mask_begin_anew():
    env = to_gymnasium_vec(catalog.make("chain", length=4), 3, "disabled")
    walk(env, 5)
    mask = np.array([True, False, True])
    obs, _ = env.reset(options={"reset_mask": mask})
    assert obs["step"].tolist() == [0, 4, 0]
    obs, reward, *_ = env.step(np.zeros(3, int))
    assert obs["step"].tolist() == [1, 4, 1] and reward.tolist() == [1, 0, 1]


def test_spaces_are_batches_of_the_single_ones():
    env = to_gymnasium_vec(make("hack"), 2)
    obs, info = env.reset(seed=0)
    assert obs in env.observation_space and info["action_mask"].shape == (2, 28)
    assert jax.tree.map(np.shape, obs) == {
        name: (2, *spec.shape) for name, spec in make("hack").spec.obs.items()
    }
