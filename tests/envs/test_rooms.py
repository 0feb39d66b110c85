"""The four rooms: motion, walls and doors, and who reaches the goal."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dtc.envs import rooms
from dtc.envs.rooms import RoomsState

ENV = rooms.rooms()
KEY = jax.random.key(0)
DOORS = {  # by wall: where the other coordinate may be while the point crosses it
    0: [(-0.7, -0.5), (0.3, 0.5)],
    1: [(-0.5, -0.3), (0.5, 0.7)],
}


def state(position, velocity=(0.0, 0.0), count=0):
    as_array = functools.partial(jnp.asarray, dtype=jnp.float32)
    return RoomsState(as_array(position), as_array(velocity), jnp.int32(count))


@functools.partial(jax.jit, static_argnames="num_steps")
def play(start, key, is_scripted, num_steps=200):
    """(positions [T, 2], first step at the goal, num_steps + 1 if never) of one episode."""

    def body(carry, x):
        now, arrived = carry
        t, key = x
        noise = jax.random.uniform(key, (2,), minval=-1.0)
        action = jnp.where(is_scripted, ENV.scripted(key, now, ()), noise)
        after, shown = ENV.step(key, now, action, ())
        after = jax.tree.map(lambda old, new: jnp.where(arrived <= t, old, new), now, after)
        arrived = jnp.where(shown.terminated, jnp.minimum(arrived, t + 1), arrived)
        return (after, arrived), after.position

    keys = jax.random.split(key, num_steps)
    carry = start, jnp.int32(num_steps + 1)
    (_, arrived), position = lax.scan(body, carry, (jnp.arange(num_steps), keys))
    return position, arrived


# Motion.


@pytest.mark.slow
def test_a_push_accelerates_and_drag_slows_to_the_greatest_speed():
    now = state((-0.75, -0.75))
    for force in ((1.0, 0.0), (5.0, 0.0)):  # beyond the box counts as at its edge
        after = rooms.pushed(now, jnp.array(force))
        np.testing.assert_allclose(after.velocity, [0.05, 0.0], atol=1e-7)
        np.testing.assert_allclose(after.position, [-0.7475, -0.75], atol=1e-7)
    fast = state((0.5, 0.5), (0.4, -0.2))
    drifting = rooms.pushed(fast, jnp.zeros(2))
    np.testing.assert_allclose(drifting.velocity, [0.36, -0.18], atol=1e-7)
    steady = rooms.pushed(state((0.5, 0.5), (0.5, -0.5)), jnp.array([1.0, -1.0]))
    np.testing.assert_allclose(steady.velocity, [0.5, -0.5], atol=1e-7)


@pytest.mark.parametrize("wall", [0, 1])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_wall_is_crossed_at_its_doors_alone(wall, sign):
    across = np.arange(-0.985, 1, 0.01)  # none at the edge of a door
    num = len(across)
    position, velocity = np.full((num, 2), -0.01 * sign), np.zeros((num, 2))
    position[:, 1 - wall], velocity[:, wall] = across, 0.5 * sign
    start = RoomsState(jnp.float32(position), jnp.float32(velocity), jnp.zeros(num, jnp.int32))
    after = jax.vmap(rooms.pushed)(start, jnp.zeros((num, 2)))
    has_crossed = np.asarray(after.position)[:, wall] * sign > 0
    is_door = np.zeros(num, bool)
    for low, high in DOORS[wall]:
        is_door |= (across > low) & (across < high)
    np.testing.assert_array_equal(has_crossed, is_door)
    stopped = jax.tree.map(lambda x: np.asarray(x)[~is_door], after)
    assert (stopped.position[:, wall] == np.float32(-0.01 * sign)).all()
    assert not stopped.velocity[:, wall].any()


def test_the_outer_walls_stop_too_and_a_point_slides_along_them():
    after = rooms.pushed(state((0.99, 0.5), (0.5, -0.2)), jnp.zeros(2))
    np.testing.assert_allclose(after.position, [0.99, 0.491], atol=1e-6)
    np.testing.assert_allclose(after.velocity, [0.0, -0.18], atol=1e-6)


# Who reaches the goal.


@pytest.mark.slow
def test_the_scripted_policy_reaches_the_goal_from_every_start_in_half_of_the_time():
    keys = jax.random.split(KEY, 256)
    starts, _ = jax.vmap(ENV.reset, (0, None))(keys, ())
    assert (abs(starts.position - rooms.START) <= rooms.START_RANGE).all()
    _, arrived = jax.vmap(play, (0, 0, None))(starts, keys, True)
    assert arrived.max() <= ENV.spec.max_steps // 2


def test_the_scripted_policy_finds_its_way_from_everywhere():
    axis = np.linspace(-0.97, 0.97, 15)
    position = jnp.asarray(np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2), jnp.float32)
    start = RoomsState(position, jnp.zeros_like(position), jnp.zeros(225, jnp.int32))
    _, arrived = jax.vmap(play, (0, None, None))(start, KEY, True)
    assert arrived.max() <= ENV.spec.max_steps


@pytest.mark.slow
def test_random_forces_hardly_leave_the_start_and_never_reach_the_goal():
    keys = jax.random.split(KEY, 4096)
    starts, _ = jax.vmap(ENV.reset, (0, None))(keys, ())
    position, arrived = jax.vmap(play, (0, 0, None))(starts, keys, False)
    assert (arrived > ENV.spec.max_steps).all()  # none of 4096, where 0.1 % would be four
    away = np.linalg.norm(position[:, -1] - starts.position, axis=-1).mean()
    assert 0.15 < away < 0.3


def test_the_goal_pays_and_terminates_even_at_the_time_limit_which_truncates():
    still = jnp.zeros(2)
    for position, is_goal in (((0.75, 0.51), True), ((0.75, 0.49), False)):
        for count in (10, 199):
            _, shown = ENV.step(KEY, state(position, count=count), still, ())
            assert shown.reward == shown.info["goal"] == shown.terminated == is_goal
            assert shown.truncated == (not is_goal and count == 199)


# Where the point is.


@pytest.mark.parametrize("xp", [np, jnp])
def test_every_position_has_a_cell_and_row_0_is_the_highest(xp):
    position = xp.asarray([[[-1, -1], [1, 1], [-1, 1], [0.01, -0.01]]], xp.float32)
    row, column = rooms.cell({"position": position})
    assert row.tolist() == [[15, 0, 0, 8]] and column.tolist() == [[0, 15, 0, 8]]


def test_the_picture_shows_walls_doors_goal_and_point():
    image = rooms.picture({"position": np.array([-0.6, -0.7])})

    def color(x, y):
        return "#" + bytes(image[int((1 - y) * 120), int((x + 1) * 120)]).hex()

    assert color(-0.6, -0.7) == rooms.LEGEND["point"] and color(-0.6, 0.7) == rooms.FLOOR
    assert color(0.7, 0.75) == rooms.LEGEND["goal"]
    for wall, doors in DOORS.items():
        for low, high in doors:
            for across, name in ((low + 0.02, rooms.FLOOR), (low - 0.02, rooms.LEGEND["wall"])):
                assert color(*((0.0, across) if wall == 0 else (across, 0.0))) == name
            assert high - low == pytest.approx(2 * rooms.DOOR)
