"""Key and door: rules read from the map, reachable states, shortest paths."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtc.envs import keydoor

UP, DOWN, LEFT, RIGHT, USE = range(5)
ENV = keydoor.keydoor()
KEY = jax.random.key(0)  # nothing is drawn
LINES = keydoor.ROOMS.split()
STEP = jax.jit(ENV.step)
FIND_KEY = [LEFT] + 6 * [DOWN]
TO_DOOR = 6 * [UP] + 6 * [RIGHT] + 2 * [DOWN]  # from the key


def after(row, column, key, door, action):
    """(row, column, key, door) after an action: a plain implementation of the rules."""
    if action == USE:
        key_now = key or LINES[row][column] == "K"
        around = [
            LINES[row - 1][column],
            LINES[row + 1][column],
            *LINES[row][column - 1 : column + 2],
        ]
        opens = key and LINES[row][column] != "D" and "D" in around
        return row, column, int(key_now), int(door or opens)
    down, right = {UP: (-1, 0), DOWN: (1, 0), LEFT: (0, -1), RIGHT: (0, 1)}[action]
    target = LINES[row + down][column + right]
    if target == "#" or (target == "D" and not door):
        return row, column, key, door
    return row + down, column + right, key, door


def numbers(obs):
    return tuple(int(obs[name]) for name in ("row", "column", "key", "door"))


def play(actions, env=ENV):
    """The TimeSteps of a reset and of a sequence of actions."""
    state, shown = env.reset(KEY, ())
    rows = [shown]
    for action in actions:
        state, shown = (STEP if env is ENV else env.step)(KEY, state, jnp.int32(action), ())
        rows.append(shown)
    return rows


@functools.cache
def reachable_by_the_rules():
    """{(row, column, key, door): fewest steps from the start}, by the plain rules."""
    found = {(3, 3, 0, 0): 0}
    queue = list(found)
    for state in queue:
        if LINES[state[0]][state[1]] == "G":
            continue
        for action in range(5):
            new = after(*state, action)
            if new not in found:
                found[new] = found[state] + 1
                queue.append(new)
    return found


# The rules.


def test_every_action_in_every_reachable_state_does_what_the_rules_say():
    states = list(reachable_by_the_rules())
    rows = [(keydoor._id(*state), action) for state in states for action in range(5)]
    ids, actions = np.array(rows, np.int32).T
    start = keydoor.KeyDoorState(jnp.asarray(ids), jnp.zeros_like(ids))
    _, shown = jax.jit(jax.vmap(ENV.step, (None, 0, 0, None)))(KEY, start, actions, ())
    shown = jax.tree.map(np.asarray, shown)
    names = ("row", "column", "key", "door")
    found = np.stack([shown.obs[name] for name in names], -1)
    expected = [after(*state, action) for state in states for action in range(5)]
    np.testing.assert_array_equal(found, expected)
    is_goal = [LINES[row][column] == "G" for row, column, _, _ in expected]
    assert (shown.reward == is_goal).all() and (shown.terminated == is_goal).all()
    assert (shown.info["goal"] == is_goal).all()


def test_the_door_stays_shut_without_the_key():
    beside = play([*5 * [RIGHT], *2 * [DOWN], USE, DOWN, USE, DOWN])[8:]
    assert [numbers(x.obs) for x in beside] == [(5, 8, 0, 0)] * 4


def test_the_key_opens_the_door_from_beside_it_and_it_stays_open():
    rows = play([*FIND_KEY, USE, *TO_DOOR, USE, DOWN, DOWN, UP, UP, USE])
    keys, doors = ([int(x.obs[name]) for x in rows] for name in ("key", "door"))
    picked, opened = len(FIND_KEY) + 1, len(FIND_KEY) + len(TO_DOOR) + 2
    assert keys == [0] * picked + [1] * (len(rows) - picked)
    assert doors == [0] * opened + [1] * (len(rows) - opened)
    assert [int(x.obs["row"]) for x in rows[opened:]] == [5, 6, 7, 6, 5, 5]


# What can be reached.


def test_the_reachable_states_are_those_of_the_rules():
    ids = [keydoor._id(*state) for state in reachable_by_the_rules()]
    assert sorted(ids) == np.flatnonzero(keydoor.reachable()).tolist()


def test_a_long_exploration_visits_every_reachable_state_and_no_other():
    env, num_envs = keydoor.keydoor(max_steps=10**6), 128

    def run(key, num_scripted):
        def body(carry, x):
            state, is_over = carry
            t, key = x
            best = env.scripted(key, state, ())
            random = jax.random.randint(key, (), 0, 5, jnp.int32)
            action = jnp.where(t < num_scripted, best, random)
            state, shown = env.step(key, state, action, ())
            return (state, is_over | shown.last), jnp.where(
                is_over, -1, keydoor.state_id(shown.obs)
            )

        keys = jax.random.split(key, 3000)
        start = env.reset(key, ())[0], jnp.bool_(False)
        return lax.scan(body, start, (jnp.arange(3000), keys))[1]

    keys, num_scripted = jax.random.split(KEY, num_envs), jnp.arange(num_envs) % 33
    seen = np.unique(jax.jit(jax.vmap(run))(keys, num_scripted))
    visited = np.zeros(keydoor.NUM_STATES, bool)
    visited[np.append(seen[seen >= 0], keydoor.FIRST)] = True
    np.testing.assert_array_equal(visited, keydoor.reachable())


def test_a_random_policy_rarely_finds_the_key_and_almost_never_the_goal():
    p = np.zeros(keydoor.NUM_STATES)
    p[keydoor.FIRST] = 1.0
    walk = np.zeros((keydoor.NUM_STATES, keydoor.NUM_STATES))
    for action in range(5):
        walk[np.arange(keydoor.NUM_STATES), keydoor.AFTER[:, action]] += 0.2
    walk[keydoor.IS_GOAL] = np.eye(keydoor.NUM_STATES)[keydoor.IS_GOAL]
    for _ in range(ENV.spec.max_steps):
        p = p @ walk
    has_key = np.arange(keydoor.NUM_STATES) // 2 % 2 == 1
    assert 0.01 < p[has_key].sum() < 0.2
    assert 0 < p[keydoor.IS_GOAL].sum() < 0.001


def test_a_state_is_numbered_from_its_observation_with_any_leading_dims():
    ids = np.arange(keydoor.NUM_STATES, dtype=np.int32).reshape(2, -1)
    observe = jax.vmap(jax.vmap(keydoor.observe))
    obs = observe(keydoor.KeyDoorState(jnp.asarray(ids), jnp.zeros_like(ids)))
    assert all(x.dtype == jnp.uint8 for x in obs.values())
    np.testing.assert_array_equal(keydoor.state_id(obs), ids)
    np.testing.assert_array_equal(keydoor.state_id(jax.tree.map(np.asarray, obs)), ids)


# The shortest way.


def test_the_scripted_policy_takes_a_shortest_path_from_everywhere():
    start_to_goal = min(
        steps
        for (row, column, *_), steps in reachable_by_the_rules().items()
        if LINES[row][column] == "G"
    )
    ids = np.flatnonzero(keydoor.reachable() & ~keydoor.IS_GOAL)
    distance = keydoor.distances()
    assert distance[keydoor.FIRST] == start_to_goal and not distance[keydoor.IS_GOAL].any()
    assert (distance[keydoor.AFTER[ids]].min(1) == distance[ids] - 1).all()
    state = keydoor.KeyDoorState(jnp.asarray(ids), jnp.zeros_like(ids))
    action = jax.vmap(ENV.scripted, (None, 0, None))(KEY, state, ())
    assert (distance[keydoor.AFTER[ids, action]] == distance[ids] - 1).all()


def test_the_scripted_policy_earns_one_in_a_quarter_of_the_time_limit():
    num_steps = keydoor.distances()[keydoor.FIRST]
    state, shown = ENV.reset(KEY, ())
    for t in itertools.count(1):
        state, shown = STEP(KEY, state, ENV.scripted(KEY, state, ()), ())
        assert shown.reward == shown.terminated == (t == num_steps)
        if shown.last:
            break
    assert 4 * num_steps == ENV.spec.max_steps


@pytest.mark.parametrize("max_steps", [32, 31])
def test_the_goal_terminates_even_at_the_time_limit_and_the_limit_truncates(max_steps):
    way = [*FIND_KEY, USE, *TO_DOOR, USE, *6 * [DOWN], *3 * [RIGHT]]
    assert len(way) == 32
    rows = play(way[:max_steps], keydoor.keydoor(max_steps))
    assert not any(bool(x.last) for x in rows[:-1])
    assert bool(rows[-1].terminated) == (max_steps == 32) != bool(rows[-1].truncated)


# What the networks see.


def test_the_encoding_is_one_hot_for_each_of_the_four_numbers():
    obs = {name: jnp.uint8(x) for name, x in (("row", 12), ("column", 3), ("key", 1), ("door", 0))}
    encoded = ENV.spec.encode(obs)
    assert encoded["cell"].shape == (2, 13) and encoded["has"].shape == (2, 2)
    assert encoded["cell"].argmax(-1).tolist() == [12, 3]
    assert encoded["has"].tolist() == [[0, 1], [1, 0]]


def test_the_picture_shows_where_the_agent_is_likely_and_what_is_left():
    def at(row, column, key, door):
        cell = np.stack([np.eye(keydoor.SIZE)[row], np.eye(keydoor.SIZE)[column]])
        return {"cell": cell, "has": np.eye(2)[[key, door]]}

    def color(image, row, column):
        half = keydoor.CELL_PIXELS // 2
        row, column = (x * keydoor.CELL_PIXELS + half for x in (row, column))
        return "#" + bytes(image[row, column]).hex()

    key = tuple(np.argwhere(keydoor.LAYOUT == "K")[0])
    before, after = (keydoor.picture(at(3, 3, has, has)) for has in (0, 1))
    assert color(before, 3, 3) == keydoor.LEGEND["agent"]
    assert color(before, *key) == keydoor.LEGEND["key"]
    assert color(before, *keydoor.DOOR) == keydoor.LEGEND["closed door"]
    assert color(after, *key) == color(after, *keydoor.DOOR) == keydoor.FLOOR
    spread = keydoor.picture({"cell": np.full((2, 13), 1 / 13), "has": np.full((2, 2), 0.5)})
    assert color(spread, 3, 3) not in (keydoor.FLOOR, keydoor.LEGEND["agent"])
