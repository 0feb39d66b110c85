"""The composition of the curious agent: what its parts pass to each other.

Other files test the parts themselves. Here a test is about two of them: which row an action belongs
to, which parameters a dream uses, where a gradient flows. tests/mutants.py plants the faults that
these tests should detect.
"""

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from dtc.algorithms.curious import acting, algorithm, dreams, judging, learn
from dtc.algorithms.curious import agent as agents
from dtc.algorithms.curious import batch as batches
from dtc.algorithms.curious.batch import sample
from dtc.algorithms.curious.model import TrunkOut
from dtc.behaviour import losses, targets
from dtc.behaviour.networks import slow_part
from dtc.behaviour.policy import log_prob_and_entropy
from dtc.behaviour.targets import ReturnRange
from dtc.core import distributions as dist
from dtc.core import mesh, normalizer, reward_unit
from dtc.core.keys import Draws
from dtc.core.metrics import Mean
from dtc.core.nets import Precision
from dtc.core.normalizer import Moments
from dtc.core.numerics import ema, ema_from_start
from dtc.core.types import Latent, Purpose, TimeStep
from dtc.curiosity import drive, rarity
from dtc.data import ring
from dtc.training import evaluation, trainer
from dtc.training.algorithm import Acted, ActKeys, Algorithm, Seen
from dtc.training.carrier import Machine
from dtc.training.evaluation import Outcome, Trace
from dtc.world_model import ensemble, imagination, rssm
from dtc.world_model import losses as trunk_losses
from dtc.world_model.ensemble import Transitions
from tests.algorithms.scene import (
    HORIZONS,
    LATENTS,
    MEMBERS,
    NUM_ROWS,
    ROWS,
    SIZES,
    STARTS,
    UPDATE,
    WALK,
    A,
    B,
    M,
    N,
    Scene,
    T,
    make_agent,
    noise,
    scene,
    some_shares,
    stored_ring,
    time_of,
    walk,
)
from tests.programs import smoke_config

pytestmark = pytest.mark.slow

H, EACH = HORIZONS[-1], STARTS // B  # dreamed steps, dreams of each sequence


def assert_equal(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def assert_close(ours, theirs, rtol=2e-5, atol=2e-6):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=rtol, atol=atol), ours, theirs)


def differ(ours, theirs):
    """Whether any leaf differs by more than rounding."""
    near = jax.tree.map(lambda x, y: np.allclose(x, y, rtol=1e-4, atol=1e-6), ours, theirs)
    return not jax.tree.all(near)


def explorer() -> Scene:
    """The scene in mode explore: the explorer acts, and a task policy plays some episodes."""
    return scene(behaviour__mode="explore")


def in_mode(mode: str) -> Scene:
    """The shared scene of mode mix or explore, so that its parts are compiled once."""
    return scene() if mode == "mix" else explorer()


# Collecting


def wanderer(is_box: bool) -> Algorithm:
    """Proposes random actions, which a constraint replaces; stores the previous action and call."""

    def act(learner, state, seen, keys):
        uniform = jax.vmap(jax.random.uniform)(keys.policy)
        action = 2 * uniform[:, None] - 1 if is_box else (A * uniform).astype(jnp.int32)
        return Acted(state + 1, action, latent={"before": seen.action, "call": state})

    return Algorithm(
        name="wanderer",
        init=lambda root: (),
        init_acting=lambda num: jnp.zeros(num, jnp.int32),
        act=act,
        learn=lambda draws, learner, collected, stored: None,
        evaluated={"greedy": act},
        constrain=lambda learner, seen, action: -action if is_box else (action + 1) % A,
    )


def wandering(is_box: bool = False) -> Machine:
    """The machine with the wanderer on the walk."""
    return Machine(walk(is_box), N, 6, 6, 1, M, has_latents=True, algorithm=wanderer(is_box))


@cache
def walked(is_box: bool = False):
    """(rows, latents) of two collections, [12, N, ...], as the ring holds them."""
    machine = wandering(is_box)

    def run():
        carrier = trainer.init(jnp.uint32(0), machine)  # the first collection is the prefill
        return trainer.collect(carrier, machine)[0].replay

    return ring.history(jax.jit(run)())


def test_a_row_holds_the_executed_action_and_the_next_row_its_reward():
    rows, _ = walked()
    np.testing.assert_array_equal(rows.action, (rows.proposed + 1) % A)
    brought = 10 * rows.action[:-1] + rows.obs["step"][:-1] + 1.0
    np.testing.assert_array_equal(rows.reward[1:], np.where(rows.first[1:], 0, brought))
    np.testing.assert_array_equal(rows.first, rows.obs["step"] == 0)
    np.testing.assert_array_equal(rows.first[1:], rows.last[:-1])
    assert rows.terminated.any() and rows.truncated.any()


def test_the_next_call_of_acting_sees_the_executed_action():
    rows, latents = walked()
    np.testing.assert_array_equal(latents["before"][1:], rows.action[:-1])
    assert not latents["before"][0].any()


def test_a_latent_is_stored_beside_the_row_it_was_acted_on():
    _, latents = walked()
    np.testing.assert_array_equal(latents["call"], np.indices((12, N))[0])


def test_the_environment_gets_the_action_scaled_to_its_box():
    rows, _ = walked(is_box=True)
    asked = 2 + (rows.action[:-1, :, 0] + 1) / 2 * (6 - 2)
    brought = 10 * asked + rows.obs["step"][:-1] + 1
    np.testing.assert_allclose(rows.reward[1:], np.where(rows.first[1:], 0, brought), rtol=1e-5)
    assert np.ptp(rows.action) > 1


def seen_at(obs, first, action) -> Seen:
    """An input of acting, with NaN for rewards, which acting must not read."""
    nothing = jnp.full(first.shape, jnp.nan)
    never = jnp.zeros(first.shape, bool)
    return Seen(TimeStep(obs, nothing, never, never, first), action)


def test_acting_resets_latent_and_action_where_an_episode_begins():
    s = scene()
    first = jnp.array([True, False, True, False])
    obs = {"step": jnp.arange(N, dtype=jnp.uint8), "length": jnp.full(N, 4, jnp.uint8)}
    keys = jax.random.split(jax.random.key(0), N)
    observe = s.compiled(acting.observe)

    def after(time, action):
        before = jax.tree.map(lambda x: jnp.asarray(x[time]), LATENTS)
        seen = seen_at(obs, first, jnp.full(N, action, jnp.int32))
        return observe(s.learner, before, seen, keys)

    one, other, third = after(0, 1), after(5, 1), after(0, 2)
    for changed in (other, third):
        same = np.isclose(one.deter, changed.deter, rtol=1e-5).all(-1)
        np.testing.assert_array_equal(same, first)
    np.testing.assert_array_equal(one.ids[first], other.ids[first])


def test_acting_and_learning_find_the_same_posterior_with_the_same_draws():
    s = scene()
    index = s.batch.sampled
    time = time_of(index.slot)  # of the context rows
    keys = jax.random.split(jax.random.key(1), B)
    uniform = jax.vmap(lambda k: jax.random.uniform(k, (s.agent.model.groups,)))(keys)
    _, (learned, *_) = s.trunk_loss_fn(s.params.trunk, s.batch, s.uniform.at[0].set(uniform))
    obs = {name: jnp.asarray(x[time + 1, index.env]) for name, x in ROWS.obs.items()}
    first = jnp.asarray(ROWS.first[time + 1, index.env])
    seen = seen_at(obs, first, jnp.asarray(ROWS.action[time, index.env]))
    acted = s.compiled(acting.observe)(s.learner, s.batch.context, seen, keys)
    assert first.any() and not first.all()
    np.testing.assert_allclose(acted.deter, learned.deter[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(acted.ids, learned.ids[0])


def forced(behaviour, name, action):
    """The behaviour's parameters with a policy that always takes one action."""
    last = behaviour[name]["actor"]["Dense_0"]
    last = {"kernel": 0 * last["kernel"], "bias": 50.0 * (jnp.arange(A) == action)}
    actor = behaviour[name]["actor"] | {"Dense_0": last}
    return behaviour | {name: behaviour[name] | {"actor": actor}}


def acted_by(act_fn, mask=None, seed=3) -> Acted:
    """The output of acting when each set of parameters prefers another action.

    0: the latest explorer, 1: the latest task policy or the averaged explorer, 2: the averaged task
    policy.
    """
    s = explorer()
    latest = forced(forced(s.params.behaviour, "explore", 0), "task", 1)
    average = forced(forced(s.learner.average, "explore", 1), "task", 2)
    learner = s.learner._replace(params=s.params._replace(behaviour=latest), average=average)
    obs = {"step": jnp.ones(N, jnp.uint8), "length": jnp.full(N, 4, jnp.uint8)}
    seen = seen_at(obs, jnp.zeros(N, bool), jnp.zeros(N, jnp.int32))
    seen = seen._replace(timestep=seen.timestep._replace(action_mask=mask))
    keys = ActKeys(*[jax.random.split(jax.random.key(seed), N)] * 2)
    if mask is None:
        policy = jax.vmap(jax.random.uniform)(keys.policy)
        assert policy.max() < 1 - dist.UNIMIX  # none of these draws is of the uniform share
    state = explorer_algorithm().init_acting(N)
    state = state._replace(latent=jax.tree.map(lambda x: jnp.asarray(x[0]), LATENTS))
    return jax.jit(act_fn)(learner, state, seen, keys)


@cache
def explorer_algorithm() -> Algorithm:
    """The explorer as an Algorithm, without plans."""
    cfg = smoke_config(**SIZES, behaviour__mode="explore", dream__plans=0)
    return algorithm.make(cfg, WALK.spec, Precision())


def test_the_entropy_of_a_box_weighs_less():
    cfg = smoke_config(**SIZES)

    def entropies(is_box):
        agent = algorithm.make_agent(cfg, walk(is_box).spec, Precision())
        return [(p.entropy, p.seeking) for p in agent.policies]

    behaviour = cfg.behaviour
    ((usual, seeking),) = entropies(False)
    assert (usual, seeking) == (behaviour.entropy, behaviour.mix_entropy)
    assert behaviour.box_entropy < 1
    box = behaviour.box_entropy * np.array([[usual, behaviour.explore_entropy]])
    np.testing.assert_allclose(entropies(True), box)


def test_an_explorer_collects_with_its_latest_parameters():
    assert acted_by(explorer_algorithm().act).action.tolist() == [0] * N


def test_no_policy_takes_an_action_that_the_mask_forbids():
    algo = explorer_algorithm()
    mask = jnp.array([[False, True, True], [False, True, False], [False, False, True], [True] * 3])
    for act_fn in (algo.act, algo.evaluated["sampled"], algo.evaluated["greedy"]):
        preferred = acted_by(act_fn).action[0]
        allowed = jnp.roll(mask, preferred, 1)  # row 3 alone allows what is preferred
        taken = np.stack([acted_by(act_fn, allowed, seed).action for seed in range(20)])
        assert np.take_along_axis(np.asarray(allowed)[None], taken[..., None], -1).all()
        assert (taken[:, 3] == preferred).mean() > 0.9, "the premise: it is preferred"


def test_acting_stores_its_new_latent():
    acted = acted_by(explorer_algorithm().act)
    assert_equal(acted.latent, acted.acting.latent)
    assert differ(acted.latent.deter, LATENTS.deter[0])


@pytest.mark.parametrize("kind", ["greedy", "sampled"])
def test_evaluation_uses_the_averaged_task_policy_whichever_policy_collects(kind):
    assert acted_by(explorer_algorithm().evaluated[kind]).action.tolist() == [2] * N


# Replay


@pytest.mark.parametrize(("later", "is_terminal"), [(2, False), (44, True)])
def test_every_fourth_sequence_begins_where_the_value_is_most_unusual(later, is_terminal):
    s = scene(replay__candidates=8)
    draws, ids = Draws(s.draws.root, jnp.int32(UPDATE + later)), jnp.arange(B)
    index, weight = s.compiled(batches.choose)(draws, s.learner, s.ring, ids)
    keys = draws.keys(Purpose.REPLAY_SAMPLE, ids)
    fold = jax.vmap(jax.random.fold_in, in_axes=(0, None))
    drawn = [ring.draw(s.ring, fold(keys, k), ids, s.agent.replay) for k in range(8)]
    latents = [ring.context(s.ring, one) for one in drawn]

    @jax.jit
    def value(latent):
        task = s.policies["task"]
        return agents.values_fn(s.agent, s.params.behaviour["task"], task, latent)["extrinsic"]

    values = np.stack([value(latent) for latent in latents])
    ended = np.array([ROWS.last[time_of(one.slot), one.env] for one in drawn])
    far = np.abs(values - np.ma.array(values, mask=ended).mean(0).data)
    unusual = np.where(ended, 0, far).argmax(0)
    assert unusual[3] > 0 and ended[far.argmax(0)[3], 3] == is_terminal
    for b, k in enumerate([0, 0, 0, unusual[3]]):
        assert (index.env[b], index.slot[b]) == (drawn[k].env[b], drawn[k].slot[b])
    np.testing.assert_allclose(weight, np.array([1, 1, 1, 0]) * 4 / 3, rtol=1e-6)


def test_values_that_hardly_differ_choose_nothing(monkeypatch):
    s, ids = scene(replay__candidates=8), jnp.arange(B)
    draws = Draws(s.draws.root, jnp.int32(UPDATE + 2))  # its last sample would be chosen otherwise
    monkeypatch.setattr(batches, "UNUSUAL", 1e3)  # more than any of the scene's values
    index, _ = jax.jit(partial(batches.choose, agent=s.agent))(draws, s.learner, s.ring, ids)
    keys = jax.vmap(lambda key: jax.random.fold_in(key, 0))(draws.keys(Purpose.REPLAY_SAMPLE, ids))
    assert_equal(index, ring.draw(s.ring, keys, ids, s.agent.replay))


@pytest.mark.parametrize("candidates", [1, 8])
def test_without_latents_or_a_choice_all_sequences_begin_anywhere(candidates):
    s = scene(replay__candidates=candidates)
    stored = s.ring if candidates == 1 else dataclasses.replace(s.ring, latents=None)
    ids = jnp.arange(B)
    index, weight = s.compiled(batches.choose)(s.draws, s.learner, stored, ids)
    keys = s.draws.keys(Purpose.REPLAY_SAMPLE, ids)
    assert_equal(index, ring.draw(stored, keys, ids, s.agent.replay))
    np.testing.assert_array_equal(weight, 1)


def test_a_batch_holds_the_rows_after_a_stored_latent_with_their_previous_actions():
    s = scene()
    batch, index = s.batch, s.batch.sampled
    time_TB = time_of(index.slot)[None] + np.arange(1, T + 1)[:, None]
    assert time_TB.max() < NUM_ROWS  # no window crosses the write head
    env_TB = np.broadcast_to(index.env, time_TB.shape)
    one_hot = np.eye(A, dtype=np.float32)
    for name in ("terminated", "truncated", "first", "action", "action_mask"):
        expected = getattr(ROWS, name)[time_TB, env_TB]
        np.testing.assert_array_equal(getattr(batch.rows, name), expected, err_msg=name)
    paid = ROWS.reward[time_TB, env_TB]
    square, share = s.learner.unit
    rate = max(reward_unit.RATE, 1 / (UPDATE + 1))
    square = square + rate * (np.square(np.maximum(paid, 0)).mean() - square)
    share = share + rate * ((paid > 0).mean() - share)
    np.testing.assert_allclose(batch.rows.reward, paid / np.sqrt(square / share), rtol=1e-5)
    np.testing.assert_array_equal(batch.first, batch.rows.first)
    np.testing.assert_array_equal(batch.action, one_hot[ROWS.action[time_TB, env_TB]])
    np.testing.assert_array_equal(batch.previous, one_hot[ROWS.action[time_TB - 1, env_TB]])
    for ours, stored in zip(batch.context, LATENTS, strict=True):
        np.testing.assert_array_equal(ours, stored[time_TB[0] - 1, env_TB[0]])
    raw = np.stack([ROWS.obs[name][time_TB, env_TB] for name in ("step", "length")], -1)
    np.testing.assert_array_equal(batch.encoded["vector"], raw)
    mean, var = (np.asarray(x) for x in s.learner.normalizer["vector"])
    expected = (raw - mean) / np.sqrt(var)
    np.testing.assert_allclose(batch.obs["vector"], expected, rtol=1e-5)


@pytest.mark.parametrize("mode", ["mix", "explore"])
def test_gradients_do_not_depend_on_how_large_rewards_are(mode):
    s, times = in_mode(mode), np.float32(2.0**10)  # nothing is rounded
    gradients = s.compiled(learn.gradients)
    ours = gradients(s.draws, s.learner, s.ring)[0]
    unit = s.learner.unit
    learner = s.learner._replace(unit=unit._replace(square=times**2 * unit.square))
    larger = stored_ring(reward_times=times, tries=mode == "explore")
    assert_equal(ours, gradients(s.draws, learner, larger)[0])
    assert differ(ours, gradients(s.draws, s.learner, larger)[0])


def test_without_a_stored_latent_a_sequence_begins_like_an_episode():
    s = scene()
    batch = s.compiled(sample)(s.draws, s.learner, stored_ring(has_latents=False))
    assert batch.first[0].all()
    assert not any(x.any() for x in jax.tree.leaves(batch.context))
    np.testing.assert_array_equal(batch.first[1:], batch.rows.first[1:])


# Trunk


def test_an_episode_does_not_depend_on_the_one_before_it():
    s, begin = scene(), 2
    before = jnp.arange(T)[:, None, None] < begin

    def seen(first, batch):
        batch = batch._replace(first=batch.first.at[1:].set(False).at[begin].set(first))
        return s.trunk_loss_fn(s.params.trunk, batch, s.uniform)[1].seen

    other = s.batch._replace(
        obs={name: jnp.where(before, x + 1, x) for name, x in s.batch.obs.items()},
        previous=jnp.where(jnp.arange(T)[:, None, None] <= begin, 0.5, s.batch.previous),
        context=s.batch.context._replace(deter=s.batch.context.deter + 1),
    )
    after = jax.tree.map(lambda x: x[begin:], (seen(True, s.batch), seen(True, other)))
    assert_equal(*after)
    assert differ(seen(False, s.batch).deter[begin:], seen(False, other).deter[begin:])


@pytest.mark.parametrize(
    ("field", "learned"),
    [
        ("reward", ("reward",)),
        ("terminated", ("cont",)),
        ("action_mask", ("mask", "rarity")),  # rarity is learned of what is allowed
    ],
)
def test_heads_learn_the_targets_of_their_own_row(field, learned):
    s, t, b = scene(), 2, 1
    x = getattr(s.batch.rows, field)
    changed = x.at[t, b].set(~x[t, b] if x.dtype == bool else x[t, b] + 7)
    batch = s.batch._replace(rows=s.batch.rows._replace(**{field: changed}))
    terms = s.trunk_loss_fn(s.params.trunk, batch, s.uniform)[1].terms
    for name, before in s.terms.items():
        where = np.argwhere(np.asarray(terms[name] != before)).tolist()
        assert where == ([[t, b]] if name in learned else []), name


def test_truncation_does_not_train_the_continue_head():
    s = scene()
    batch = s.batch._replace(rows=s.batch.rows._replace(truncated=~s.batch.rows.truncated))
    assert_equal(s.trunk_loss_fn(s.params.trunk, batch, s.uniform)[1].terms, s.terms)


def replay_value(s: Scene, start_return=None):
    """The replay-value loss and its gradients; `start_return` defaults to the dreamed returns."""
    if start_return is None:
        start_return = s.lesson("task").start_return["extrinsic"]
    return s.replay_value("task", start_return)


def trunk_gradient(s: Scene, deter=None, stoch=None):
    """The gradient of the trunk's loss, plus the given cotangents of its states."""

    def out(trunk):
        return s.trunk_loss_fn(trunk, s.batch, s.uniform)[0]

    given, pull_back = jax.vjp(out, s.params.trunk)
    deter = jnp.zeros_like(given.deter) if deter is None else deter
    stoch = jnp.zeros_like(given.stoch) if stoch is None else stoch
    return pull_back(TrunkOut(jnp.ones(()), deter, stoch))[0]


@pytest.mark.parametrize("mode", ["mix", "explore"])
def test_the_trunk_learns_from_its_losses_and_from_the_replay_value_loss(mode):
    s = in_mode(mode)
    value = replay_value(s)[1]
    expected = trunk_gradient(s, value.deter, value.stoch)
    assert_close(s.gradients.trunk, expected)
    for one in ({"deter": value.deter}, {"stoch": value.stoch}):  # both ways into the trunk count
        assert differ(trunk_gradient(s, **one), expected)


@pytest.mark.parametrize("has_latents", [True, False])
def test_the_trunk_s_gradient_weighs_the_dynamics_loss_of_each_row(has_latents):
    s = scene(replay__latents=has_latents)
    begins = s.batch.rows.first if has_latents else s.batch.rows.first.at[0].set(True)
    weight = trunk_losses.focal(s.terms["dyn"], begins, s.agent.model.focal)
    assert np.std(weight) > (0.05 if has_latents else 0.04)
    assert not s.batch.rows.first[0].all()

    def loss(trunk):
        terms = s.trunk_loss_fn(trunk, s.batch, s.uniform)[1].terms
        return trunk_losses.total(dict(terms, dyn=weight * terms["dyn"]), s.agent.trunk)

    assert_close(jax.grad(loss)(s.params.trunk), trunk_gradient(s))


@pytest.mark.parametrize("mode", ["mix", "explore"])
def test_the_task_s_critic_learns_from_dreams_and_from_replayed_returns(mode):
    s = in_mode(mode)
    from_replay = replay_value(s)[1].critic
    expected = jax.tree.map(jnp.add, s.lesson("task").gradients, from_replay)
    assert_close(s.gradients.behaviour["task"], expected)
    assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(from_replay["critic_extrinsic"]))
    assert not any(x.any() for x in jax.tree.leaves(from_replay["actor"]))


def test_replayed_returns_train_the_task_s_critic_alone():
    for s in (scene(), explorer()):
        shapes = jax.eval_shape(partial(learn.gradients, agent=s.agent), s.draws, s.learner, s.ring)
        names = {n for n in shapes[1].scalars if "replay_value" in n}
        assert names == {"task/loss/replay_value"}


def replay_targets(s: Scene, boot_TB):
    """[T - 1, B] lambda-returns along what one policy played, as in `replay_lambda_returns`."""
    rows, cfg = s.batch.rows, s.agent.behaviour
    own_TB = ~np.asarray(rows.last) if rows.extras is None else np.asarray(~rows.last & rows.extras)
    target, later = np.zeros((T - 1, B)), np.asarray(boot_TB[-1], np.float64)
    for t in reversed(range(T - 1)):
        chain = 0 if t == T - 2 else cfg.lam * own_TB[t + 1]
        rest = (1 - chain) * boot_TB[t + 1] + chain * later
        later = rows.reward[t + 1] + cfg.discount * ~np.asarray(rows.terminated[t + 1]) * rest
        target[t] = later
    return jnp.asarray(target, jnp.float32)


@pytest.mark.parametrize("mode", ["mix", "explore"])
def test_replayed_returns_bootstrap_from_dreamed_returns_and_elsewhere_from_the_critic(mode):
    s, start_return = in_mode(mode), np.linspace(-3, 4, STARTS, dtype=np.float32)
    policy, behaviour = s.agent.task, s.params.behaviour["task"]
    state = Latent(s.seen.deter, s.seen.ids)
    boot_TB = np.array(agents.values_fn(s.agent, behaviour, policy, state)["extrinsic"])
    for b in range(B):
        for j in range(EACH):
            boot_TB[s.starts.t[b, j], b] = start_return[b * EACH + j]
    target_TB = replay_targets(s, boot_TB)
    net, counts_TB = s.agent.net(policy), ~s.batch.rows.last[:-1]
    if mode == "explore":  # what the explorer did says nothing about the task policy
        tried_TB = s.batch.rows.extras[:-1]
        assert (counts_TB & tried_TB).any() and (counts_TB & ~tried_TB).any()
        is_left_TB = tried_TB & ~s.batch.rows.extras[1:] & ~s.batch.rows.last[1:]
        assert (counts_TB & is_left_TB)[:-1].any()  # within an episode
        counts_TB &= tried_TB

    @jax.jit
    def loss(behaviour, deter, stoch):
        feature = dreams.Feature(deter[:-1], stoch[:-1])
        values = (net.apply({"params": x}, feature, method="values")["extrinsic"]
                  for x in (behaviour, s.learner.slow["task"]))  # fmt: skip
        loss_TB = losses.critic_loss(*values, target_TB, net.bins)
        return dreams.REPLAY_VALUE_SCALE * jnp.where(counts_TB, loss_TB, 0).mean()

    expected = jax.value_and_grad(loss, (0, 1, 2))(behaviour, s.seen.deter, s.seen.stoch)
    found, gradients = replay_value(s, jnp.asarray(start_return))
    assert not counts_TB.all()
    np.testing.assert_allclose(found, expected[0], rtol=1e-5)
    assert_close(tuple(gradients), expected[1])


# Members


def member_losses(s: Scene):
    """[E, T - 1, B] KL of the posterior at t + 1 to each member's prediction from (s_t, a_t)."""
    before = jax.tree.map(lambda x: x[:-1].reshape(-1, *x.shape[2:]), s.seen)
    action = s.batch.action[:-1].reshape(-1, A)
    data = Transitions(Latent(before.deter, before.ids), action)
    predict = jax.jit(partial(ensemble.predict, s.agent.member))
    log_p = np.asarray(predict(s.params.members, data), np.float64)
    log_q = np.asarray(s.seen.log_post[1:], np.float64).reshape(log_p.shape[1:])
    return (np.exp(log_q) * (log_q - log_p)).sum((-2, -1)).reshape(MEMBERS, T - 1, B)


def test_members_learn_the_next_posterior_within_episodes():
    s = scene()
    counts_TB = ~np.asarray(s.batch.rows.first[1:])
    expected = (member_losses(s) * counts_TB).sum((1, 2))
    np.testing.assert_allclose(s.members[1].loss, expected, rtol=1e-5)
    assert s.members[1].weight.tolist() == [counts_TB.sum()] * MEMBERS
    assert 0 < counts_TB.sum() < counts_TB.size


def test_a_pair_across_the_end_of_an_episode_trains_no_member():
    s = scene()
    t, b = np.argwhere(np.asarray(s.batch.rows.first[1:]))[0]  # row t + 1 begins an episode

    def learned(t_next):
        log_post = s.seen.log_post.at[t_next, b].set(jnp.log(0.25))
        seen = s.seen._replace(log_post=log_post)
        return s.members_fn(s.params.members, seen, s.terms, s.batch, s.novel_from)[0]

    assert_equal(learned(t + 1), s.members[0])
    counted = int(np.argwhere(~np.asarray(s.batch.rows.first[1:, b]))[0, 0])
    assert differ(learned(counted + 1), s.members[0])


def test_members_send_no_gradient_to_the_trunk():
    s = scene()

    def loss(deter, log_post):
        seen = s.seen._replace(deter=deter, log_post=log_post)
        sums = s.members_fn(s.params.members, seen, s.terms, s.batch, s.novel_from)[1]
        return sums.loss.sum() + sums.novelty.sum()

    grads = jax.grad(loss, (0, 1))(s.seen.deter, s.seen.log_post)
    assert not any(x.any() for x in grads)


def test_a_ghost_has_no_gradient_and_no_effect_on_novelty():
    s = scene()
    with_ghost = jax.tree.map(lambda x: jnp.concatenate([x, x[:1] + 1]), s.params.members)
    grads, sums, _ = s.members_fn(with_ghost, s.seen, s.terms, s.batch, s.novel_from)
    assert not any(x[MEMBERS].any() for x in jax.tree.leaves(grads))
    assert sums.weight[MEMBERS] == 0 and sums.loss[MEMBERS] == 0
    np.testing.assert_allclose(sums.novelty, s.members[1].novelty, rtol=1e-5)
    assert_close(jax.tree.map(lambda x: x[:MEMBERS], grads), s.members[0])


def test_the_novelty_metric_is_of_the_frontier_half_within_episodes():
    s = scene()
    _, sums, scalars = s.members
    novelty_BT = np.asarray(sums.novelty).reshape(T - 1, B).T
    counts_BT = ~np.asarray(s.batch.rows.first[1:]).T
    is_frontier_B = np.asarray(s.batch.sampled.id) % 2 == 0
    for name, rows in (("novelty", is_frontier_B), ("novelty_replay", slice(None))):
        found = scalars[f"curiosity/{name}"]
        expected = novelty_BT[rows][counts_BT[rows]].mean()
        np.testing.assert_allclose(found.total / found.weight, expected, rtol=1e-5)


# Dreams


def test_dreams_start_at_sampled_posteriors_with_global_ids_and_are_not_alive_if_terminal():
    s = scene()
    ended = jnp.asarray(np.indices((T, B)).sum(0) % 2 == 0)
    batch = s.batch._replace(
        rows=s.batch.rows._replace(terminated=ended, truncated=~ended),
        sampled=s.batch.sampled._replace(id=s.batch.sampled.id + 100),
        weight=jnp.array([1.0, 0.0, 2.0, 1.0]),
    )
    starts = s.starts_fn(s.draws, s.learner, s.seen, batch)
    assert all(len(set(t.tolist())) == EACH for t in starts.t)
    t, b = np.asarray(starts.t).reshape(-1), np.asarray(starts.b).reshape(-1)
    np.testing.assert_array_equal(b, np.repeat(np.arange(B), EACH))
    np.testing.assert_array_equal(starts.ids, 100 * EACH + np.arange(STARTS))
    np.testing.assert_array_equal(starts.latent.deter, s.seen.deter[t, b])
    np.testing.assert_array_equal(starts.latent.ids, s.seen.ids[t, b])
    np.testing.assert_array_equal(starts.alive, ~np.asarray(ended)[t, b])
    np.testing.assert_array_equal(starts.usual, b != 1)
    assert 0 < starts.alive.sum() < STARTS


def test_starts_send_no_gradient_to_the_trunk():
    s = scene()

    def total(deter):
        return s.starts_fn(
            s.draws, s.learner, s.seen._replace(deter=deter), s.batch
        ).latent.deter.sum()

    assert not jax.grad(total)(s.seen.deter).any()


def test_no_two_dreams_share_random_keys_within_or_between_policies(monkeypatch):
    s, taken = explorer(), []
    monkeypatch.setattr(imagination, "imagine", lambda keys, *args: taken.append(keys))
    for policy in s.agent.policies:
        dreams.dream(s.draws, s.learner, s.params, scene().starts, policy, s.agent)
    keys = np.concatenate([jax.random.key_data(x) for x in taken])
    assert len(taken) == 2 and len(np.unique(keys, axis=0)) == 2 * STARTS


def test_each_policy_dreams_with_its_own_actor_and_critics():
    s = explorer()
    behaviour = forced(forced(s.params.behaviour, "explore", 0), "task", 1)
    params = s.params._replace(behaviour=behaviour)
    state = jax.tree.map(lambda x: jnp.asarray(x[0]), LATENTS)
    keys = jax.random.split(jax.random.key(0), N)
    for action, (name, policy) in enumerate(s.policies.items()):
        fns = dreams.model_fns(s.agent, s.learner._replace(params=params), policy)
        assert jax.jit(fns.policy)(state, None, keys, 0).tolist() == [action] * N
        values = agents.values_fn(s.agent, behaviour[name], policy, state)
        assert_close(jax.jit(fns.value)(state), values)


def test_a_dreamed_step_is_credited_with_the_next_state_s_reward_and_its_own_novelty():
    s = scene()
    dreamed, policy = s.dreamed("task"), s.agent.task
    assert_equal(jax.tree.map(lambda x: x[0], dreamed.latent), s.starts.latent)

    @jax.jit
    def again(latent, action):
        uniform = jnp.zeros((STARTS, s.agent.model.groups))
        chosen = s.agent.action_input(action)
        after = rssm.imagine_step(s.agent.trunk, s.params.trunk, latent, chosen, uniform)
        reward, cont, _ = dreams.heads_fn(s.agent, s.params.trunk, latent)
        value = agents.values_fn(s.agent, s.params.behaviour["task"], policy, latent)
        return (after.deter, dreams.novelty_fn(s.agent, s.learner, latent, action)), (
            reward,
            cont,
            value,
        )

    steps = [again(*jax.tree.map(lambda x, t=t: x[t], dreamed[:2])) for t in range(H)]
    for t in range(H):
        np.testing.assert_allclose(dreamed.novelty[t], steps[t][0][1], rtol=1e-5)
        if t + 1 < H:
            deter, (reward, cont, value) = steps[t][0][0], steps[t + 1][1]
            np.testing.assert_allclose(dreamed.latent.deter[t + 1], deter, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(dreamed.reward[t], reward, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(dreamed.cont[t], cont, rtol=1e-5)
            assert_close({k: x[t] for k, x in dreamed.value.items()}, value)


def test_novelty_in_dreams_is_disagreement_times_the_predicted_rarity():
    s = scene()
    latent, action = s.dreamed("task").latent, s.dreamed("task").action
    state = jax.tree.map(lambda x: x[0], latent)

    @jax.jit
    def parts(learner):
        data = ensemble.Transitions(state, s.agent.action_input(action[0]))
        plain = ensemble.measure(
            s.agent.member, learner.params.members, data, s.agent.num_members, s.agent.novelty
        )
        variables, feature = {"params": learner.params.trunk}, s.agent.feature(state)
        log = s.agent.trunk.apply(variables, feature, data.action, method="log_rarity")
        return plain, log, dreams.novelty_fn(s.agent, learner, state, action[0])

    plain, log, novelty = parts(s.learner)
    assert np.ptp(np.asarray(log)) > 0.1
    np.testing.assert_allclose(novelty, plain * np.clip(np.exp(log), 0.001, 1000), rtol=1e-5)


def test_a_plan_s_state_is_as_rare_as_the_counts_of_what_it_decodes_to():
    s = scene()
    state = jax.tree.map(lambda x: x[0], s.dreamed("task").latent)
    actions = jnp.zeros(state.ids.shape[0], jnp.int32)

    @jax.jit
    def counted(state, actions, learner):
        return dreams.counted_rarity(s.agent, learner, state, actions)

    @jax.jit
    def shares_of(state):
        decoded = trunk_losses.decode(s.agent.trunk, s.params.trunk, s.agent.feature(state))
        x = jnp.concatenate([decoded[k].reshape(len(actions), -1) for k in sorted(decoded)], -1)
        rows = rarity.taken(rarity.hashed(x, s.agent.spec.action.num_classes), actions)
        return rarity.shares(rows, jnp.ones(len(actions)))

    known = s.learner._replace(seen=shares_of(state))
    with_it, with_another = counted(state, actions, known), counted(state, actions + 1, known)
    assert with_it.max() < 10
    np.testing.assert_allclose(with_another, rarity.MOST, rtol=1e-5)


def test_a_plan_s_first_step_is_as_rare_as_the_observation_that_it_begins_with():
    s = scene()
    state = jax.tree.map(lambda x: x[0], s.dreamed("task").latent)
    actions, obs = jnp.zeros(state.ids.shape[0], jnp.int32), 3.0 + jnp.arange(4.0).reshape(2, 2)

    @jax.jit
    def counted(obs):
        rows = rarity.hashed(obs, s.agent.spec.action.num_classes)
        rows = jax.tree.map(lambda x: x[:, 0], rows)  # with action 0
        known = s.learner._replace(seen=rarity.shares(rows, jnp.ones(len(obs))))
        return [
            dreams.counted_rarity(s.agent, known, state, actions, x)
            for x in ({"vector": obs}, None)
        ]

    with_it, without = counted(obs)
    assert (with_it[:2] < 10).all() and (without[:2] > 100).all()
    np.testing.assert_array_equal(with_it[2:], without[2:])


def test_rows_are_rare_by_what_was_replayed_before_and_then_counted():
    s = scene(replay__candidates=8)
    seen = s.seen

    @jax.jit
    def heads(trunk):
        before = dreams.Feature(seen.deter, jnp.exp(seen.log_prior))
        expected = trunk_losses.decode(s.agent.trunk, trunk, before)
        feature, variables = seen.feature(Precision()), {"params": trunk}
        log = s.agent.trunk.apply(variables, feature, method="log_rarities")
        both = (rarity.flat(obs, expected, axes=2) for obs in (s.batch.obs, expected))
        return [rarity.hashed(x, s.agent.trunk.num_actions) for x in both], log

    (came, expected), log = heads(s.params.trunk)
    assert differ(came, expected)
    rare = [np.asarray(rarity.rarity(s.learner.seen, rows)) for rows in (came, expected)]
    assert min(np.ptp(x) for x in rare) > 0.1
    log_rare = 0.5 * (np.log(rare[0]) + np.log(rare[1]))
    theirs = np.exp(0.5 * log_rare) * np.square(log - log_rare)
    mask = s.batch.rows.action_mask
    theirs = theirs.mean(-1) if mask is None else (theirs * mask).sum(-1) / np.asarray(mask).sum(-1)
    np.testing.assert_allclose(s.terms["rarity"], theirs, rtol=1e-4, atol=1e-6)
    weight, action = np.broadcast_to(s.batch.weight, (T, B)), s.batch.rows.action
    chosen = (rarity.taken(x, action) for x in (came, expected))
    shares = sum(rarity.shares(x, weight) for x in chosen) / 2
    # Distances from edges are as exact as projections: to 1e-4 of what one row counts.
    np.testing.assert_allclose(s.gradients.shares, shares, rtol=1e-5, atol=4e-6)


def test_the_trunk_recalls_rows_of_the_same_episode_in_the_same_sequence():
    s = scene()
    earlier, first = np.asarray(s.batch.earlier), np.asarray(s.batch.rows.first)
    for t, b in np.ndindex(earlier.shape):
        begin = max([0, *np.flatnonzero(first[: t + 1, b])])
        assert begin <= earlier[t, b] <= max(begin, t - 1)


def test_a_dream_takes_only_actions_that_its_predicted_mask_allows():
    s = scene()
    dreamed = s.dreamed("task")
    allowed = jax.jit(partial(dreams.heads_fn, s.agent))(s.params.trunk, dreamed.latent)[2]
    allowed = np.asarray(allowed)
    np.testing.assert_array_equal(dreamed.mask, allowed)
    taken = np.take_along_axis(allowed, np.asarray(dreamed.action)[..., None], -1)[..., 0]
    assert (taken | ~allowed.any(-1)).all()
    assert not allowed.all(-1).all()


def with_bucket(s: Scene, bucket: int):
    """The learner with another horizon bucket."""
    return s.learner._replace(curiosity=s.learner.curiosity._replace(bucket=jnp.int32(bucket)))


def test_a_dream_has_the_length_of_its_bucket_and_begins_like_a_longer_one():
    s, short = scene(), HORIZONS[0]
    dreamed = s.dreamed("task", with_bucket(s, 0))
    assert_equal(*[jax.tree.map(lambda x: x[:short], d) for d in (dreamed, s.dreamed("task"))])
    assert not any(x[short:].any() for x in jax.tree.leaves(dreamed))


def test_steps_beyond_the_horizon_have_no_effect():
    s, short = scene(), HORIZONS[0]

    def lesson(fill):
        def after(x):
            fits = jnp.issubdtype(x.dtype, jnp.floating)
            return x.at[short:].set(fill) if fits else x

        dreamed = jax.tree.map(after, s.dreamed("task"))
        return s.lesson("task", learner=with_bucket(s, 0), dreamed=dreamed)

    assert_equal(lesson(0.0), lesson(jnp.nan))


# Behaviour


def rewarded(s: Scene, name: str, **changes):
    """The dream of a policy with other rewards, continues or values."""
    return s.dreamed(name)._replace(**changes)


def lesson_equations(s: Scene, name: str):
    """Returns, advantages and weights of a policy's dreams: float64 loops over their equations."""
    policy, dreamed, cfg = s.policies[name], s.dreamed(name), s.agent.behaviour
    state = s.learner.curiosity
    behaviour = s.params.behaviour[name]
    value_0 = agents.values_fn(s.agent, behaviour, policy, s.starts.latent)
    cont = np.asarray(dreamed.cont, np.float64)
    alive = np.asarray(s.starts.alive, np.float64)
    runs, weight = np.zeros(cont.shape, bool), np.zeros(cont.shape)
    discount = max(r.discount for r in policy.rewards)
    survival, discounted = alive, alive
    for t in range(H):
        runs[t], weight[t] = survival > 0.5, discounted
        survival, discounted = survival * cont[t], discounted * discount * cont[t]
    counted = runs & np.asarray(s.starts.usual)  # in statistics
    returns, advantage = {}, np.zeros(cont.shape)
    for kind in policy.rewards:
        old, reward = s.teacher.ranges[name][kind.name], np.asarray(dreamed.reward, np.float64)
        kind_weight = kind.weight
        if kind.name == "intrinsic":
            reward = np.asarray(dreamed.novelty, np.float64)
            if policy.is_relative:  # the actions of the scene are discrete
                reward = (1 - kind.discount) * np.sqrt(reward / state.fast)
            reward = reward + kind.discount * (1 - cont) * old.low
            kind_weight = kind_weight * (1 if policy.is_relative else 1 - state.boredom)
        values = np.asarray(dreamed.value[kind.name], np.float64)
        ret, later = np.zeros(cont.shape), values[-1]
        for t in reversed(range(H)):
            rest = (1 - cfg.lam) * values[t] + cfg.lam * later
            later = reward[t] + kind.discount * cont[t] * rest
            ret[t] = later
        now = np.concatenate([np.asarray(value_0[kind.name])[None], values[:-1]])
        low, high = np.percentile(ret[counted], targets.PERCENTILES)
        rate = max(targets.RETURN_RATE, 1 / (UPDATE + 1))
        low, high = old.low + rate * (low - old.low), old.high + rate * (high - old.high)
        delta = ret - now
        scale = max(kind.floor, high - low)
        returns[kind.name], advantage = (
            ret,
            advantage + kind_weight * (delta - delta[counted].mean()) / scale,
        )
    return returns, advantage, weight


@pytest.mark.parametrize(
    ("mode", "name"), [("mix", "task"), ("explore", "explore"), ("explore", "task")]
)
def test_the_gradients_from_dreams_equal_the_equations(mode, name):
    s = in_mode(mode)
    arrays = lesson_equations(s, name)
    returns, advantage, weight = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), arrays)
    net, dreamed = s.agent.net(s.policies[name]), s.dreamed(name)
    feature, slow = s.agent.feature(dreamed.latent), {"params": s.learner.slow[name]}
    seeking, is_seeking = s.learner.entropy[name], name == "explore"  # the scene's task pays
    eta = seeking.factor * seeking.advantage if is_seeking else s.agent.behaviour.entropy

    @jax.jit
    @jax.grad
    def gradient(behaviour):
        output, logits, _ = net.apply({"params": behaviour}, feature, method="everything")
        slow_logits = net.apply(slow, feature, method="values")
        given = output, dreamed.action, dreamed.mask, s.agent.spec
        (log_p, entropy), (plain, _) = (log_prob_and_entropy(*given, x) for x in (dist.UNIMIX, 0.0))
        log_p = jnp.where(advantage > 0, plain, log_p)
        loss = -(log_p * advantage + eta * entropy)
        for kind, ret in returns.items():
            loss += losses.critic_loss(logits[kind], slow_logits[kind], ret, net.bins)
        return (weight * loss).mean()

    lesson = s.lesson(name)
    assert_close({k: x[0] for k, x in returns.items()}, lesson.start_return)
    assert_close(lesson.gradients, gradient(s.params.behaviour[name]))


def test_a_dream_from_a_terminal_state_has_no_effect():
    s = scene()
    over = int(s.starts.alive.argmax())
    starts = s.starts._replace(alive=s.starts.alive.at[over].set(0.0))
    dreamed = s.dreamed("task")
    other = rewarded(s, "task", reward=dreamed.reward.at[:, over].add(5.0))
    ours, theirs = (s.lesson("task", starts=starts, dreamed=d) for d in (dreamed, other))
    assert_equal(ours.gradients, theirs.gradients)
    assert_equal(ours.ranges, theirs.ranges)
    assert differ(s.lesson("task").gradients, s.lesson("task", dreamed=other).gradients)


def test_each_kind_of_reward_has_its_own_discount():
    s, cfg = scene(), scene().agent.behaviour
    cont = jnp.ones((H, STARTS))
    value = s.dreamed("task").value
    later = {k: v.at[-1].add(1.0) for k, v in value.items()}  # where the dream is cut
    one, other = (
        s.lesson("task", dreamed=rewarded(s, "task", cont=cont, value=v)).start_return
        for v in (value, later)
    )
    discounts = {"extrinsic": cfg.discount, "intrinsic": cfg.intrinsic_discount}
    for kind, discount in discounts.items():
        expected = discount**H * cfg.lam ** (H - 1)
        np.testing.assert_allclose(other[kind] - one[kind], expected, rtol=1e-4)


def test_a_terminal_state_has_extrinsic_value_0_and_the_intrinsic_value_of_a_familiar_state():
    s = scene()
    dreamed = rewarded(s, "task", cont=jnp.zeros((H, STARTS)))
    found = s.lesson("task", dreamed=dreamed).start_return
    low, discount = s.learner.ranges["task"]["intrinsic"].low, s.agent.behaviour.intrinsic_discount
    np.testing.assert_allclose(found["extrinsic"], dreamed.reward[0], rtol=1e-6)
    np.testing.assert_allclose(found["intrinsic"], dreamed.novelty[0] + discount * low, rtol=1e-5)


def test_an_action_with_more_reward_than_others_becomes_more_probable():
    s, chosen = scene(), 0
    dreamed = s.dreamed("task")
    free = jnp.ones_like(dreamed.mask)
    still = {"cont": jnp.zeros((H, STARTS)), "novelty": jnp.zeros((H, STARTS)), "mask": free}
    pays = 1e3 * (dreamed.action == chosen)  # far above the critics' values
    found = s.lesson("task", dreamed=rewarded(s, "task", reward=pays, **still))
    step = -found.gradients["actor"]["Dense_0"]["bias"]
    assert step[chosen] > 0 and all(step[a] < 0 for a in range(A) if a != chosen)


def test_a_return_above_the_critic_that_all_actions_share_does_not_train_the_actor():
    s, name = explorer(), "explore"  # one kind of reward: no other advantage beside it
    over = jnp.zeros((H, STARTS))  # all ends at once, so a return is one reward
    root = jnp.sqrt(s.dreamed(name).novelty)  # of which the policy's reward is a multiple
    one, other = (
        s.lesson(name, dreamed=rewarded(s, name, cont=over, novelty=jnp.square(root + x)))
        for x in (0.0, 0.1)
    )
    raised = other.start_return["intrinsic"] - one.start_return["intrinsic"]
    assert (raised > 0.01).all()
    assert_close(other.gradients["actor"], one.gradients["actor"], rtol=1e-3, atol=1e-6)


def test_a_masked_action_has_no_gradient():
    s, never = scene(), 2
    mask = jnp.broadcast_to(jnp.arange(A) != never, (H, STARTS, A))
    dreamed = s.dreamed("task")
    dreamed = rewarded(s, "task", mask=mask, action=dreamed.action % 2)
    bias = s.lesson("task", dreamed=dreamed).gradients["actor"]["Dense_0"]["bias"]
    assert bias[never] == 0 and all(bias[a] != 0 for a in range(A) if a != never)


def curiosity(s: Scene, **changes):
    """The learner with other values of its CuriosityState."""
    changes = {name: jnp.float32(x) for name, x in changes.items()}
    return s.learner._replace(curiosity=s.learner.curiosity._replace(**changes))


def test_boredom_scales_only_the_intrinsic_advantage():
    s = scene()

    def advantages(boredom):
        scalars = s.lesson("task", learner=curiosity(s, boredom=boredom)).scalars
        return {k: scalars[f"task/{k}/advantage"].total for k in ("extrinsic", "intrinsic")}

    keen, bored = advantages(0.0), advantages(0.75)
    np.testing.assert_allclose(bored["intrinsic"], 0.25 * keen["intrinsic"], rtol=1e-5)
    assert bored["extrinsic"] == keen["extrinsic"]


@pytest.mark.parametrize(("mode", "name"), [("mix", "task"), ("explore", "explore")])
def test_only_a_reward_free_policy_uses_novelty_relative_to_its_mean(mode, name):
    s = in_mode(mode)
    novelty = s.dreamed(name).novelty

    def worth(fast):
        """The part of the return that comes from novelty."""
        with_it, without = (
            s.lesson(name, learner=curiosity(s, fast=fast), dreamed=rewarded(s, name, novelty=x))
            for x in (novelty, 0 * novelty)
        )
        return with_it.start_return["intrinsic"] - without.start_return["intrinsic"]

    expected = worth(0.1) * (1 if mode == "mix" else 0.5**0.5)
    np.testing.assert_allclose(worth(0.2), expected, rtol=1e-4)


def test_each_policy_has_its_own_entropy_weight():
    s = explorer()

    def lesson(name, weight):
        entropy = s.learner.entropy | {name: targets.Seeking(jnp.float32(weight), 1.0)}
        return s.lesson("explore", learner=s.learner._replace(entropy=entropy))

    assert_equal(lesson("task", 0.1), lesson("task", 0.9))
    none, some, more = (lesson("explore", w).scalars["explore/loss/actor"] for w in (0.0, 0.5, 1.0))
    np.testing.assert_allclose(more - none, 2 * (some - none), rtol=1e-4)
    assert more < none  # entropy lowers the loss


def moved(ours, theirs):
    """The networks whose gradients differ."""
    return {name for name in ours if differ(ours[name], theirs[name])}


@pytest.mark.parametrize("kind", ["extrinsic", "intrinsic"])
def test_each_critic_learns_the_returns_of_its_own_kind(kind):
    s, field = scene(), {"extrinsic": "reward", "intrinsic": "novelty"}[kind]
    other = rewarded(s, "task", **{field: getattr(s.dreamed("task"), field) + 0.5})
    found = moved(s.lesson("task").gradients, s.lesson("task", dreamed=other).gradients)
    assert found - {"actor", "salience"} == {f"critic_{kind}"}


@pytest.mark.parametrize("kind", ["extrinsic", "intrinsic"])
def test_each_critic_is_regularised_by_the_slow_critic_of_its_own_kind(kind):
    s, name = scene(), f"critic_{kind}"
    task = s.learner.slow["task"]
    slow = {"task": task | {name: jax.tree.map(lambda x: 1.1 * x, task[name])}}
    other = s.lesson("task", learner=s.teacher._replace(slow=slow))
    found = moved(s.lesson("task").gradients, other.gradients)
    assert found - {"salience"} == {name}


def test_a_slow_critic_equal_to_the_return_doubles_the_loss_and_has_no_gradient():
    bins = 21
    logits, slow = (jnp.asarray(noise({"x": jnp.zeros((2, 3, bins))}, i)["x"]) for i in (0, 1))
    slow = slow - 1.6 * jnp.log1p(jnp.abs(dist.twohot_bins(bins))).reshape(1, 1, -1)
    target = dist.twohot_mean(slow, dist.twohot_bins(bins))
    found = losses.critic_loss(logits, slow, target, bins)
    alone = dist.twohot_loss(logits, target, dist.twohot_bins(bins))
    np.testing.assert_allclose(found, 2 * alone, rtol=1e-5)
    assert not jax.grad(lambda x: losses.critic_loss(logits, x, target, bins).sum())(slow).any()


# After the gradients


def given_gradients(s: Scene):
    """Gradients and UpdateInfo with distinct numbers."""
    one = scene()  # both agents have equal batches and posteriors
    scalars = {
        "curiosity/novelty": Mean(jnp.float32(3.0), jnp.float32(10.0)),
        "curiosity/novel_share": Mean(jnp.float32(5.0), jnp.float32(10.0)),
        "curiosity/novelty_replay": Mean(jnp.float32(7.0), jnp.float32(10.0)),
        "explore/intrinsic/advantage": Mean(jnp.float32(4.0), jnp.float32(10.0)),
        "explore/intrinsic/return_scale": jnp.float32(targets.USUAL_RANGE / 1.5),
        "task/extrinsic/advantage": Mean(jnp.float32(9.0), jnp.float32(10.0)),
        "explore/entropy_share": Mean(jnp.float32(9.7), jnp.float32(10.0)),
        "task/entropy_share": Mean(jnp.float32(2.0), jnp.float32(10.0)),
    }
    away = {"vector": Moments(jnp.array([0.3, -0.2]), jnp.array([1.1, 0.7]))}
    grads = learn.Gradients(*noise(s.params, 7), away, jnp.roll(some_shares(), 1, -1))
    ranges = jax.tree.map(lambda x: x + 0.125, s.learner.ranges)
    return grads, learn.UpdateInfo(one.seen, one.batch, ranges, scalars)


@cache
def update_fn():
    """(learner, ring, gradients, info) -> result of `learn` with these gradients."""
    s = explorer()

    def update(learner, stored, grads, info):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(learn, "gradients", lambda *args: (grads, info))
            learned = learn.learn(s.draws, learner, None, stored, s.agent)
        written = None if learned.written is None else ring.write_back(stored, learned.written)
        return learned, written

    return jax.jit(update)


@cache
def updated():
    """(the explorer after an update with the given gradients, the ring after it)"""
    s = explorer()
    return update_fn()(s.learner, s.ring, *given_gradients(s))


def test_competence_follows_the_novelty_of_the_frontier_half():
    cfg, old = explorer().agent.curiosity, explorer().learner.curiosity
    new = updated()[0].learner.curiosity
    steps = {"fast": cfg.fast_rate, "slow": cfg.slow_rate}
    for name, rate in steps.items():
        expected = ema_from_start(getattr(old, name), jnp.float32(0.3), rate, UPDATE + 1)
        np.testing.assert_allclose(getattr(new, name), expected, rtol=1e-6)


@pytest.mark.parametrize("paid, stake", [(0.0, 0.0), (0.025, 0.25), (0.1, 1.0), (0.5, 1.0)])
def test_an_explorer_is_bored_as_far_as_its_task_pays(paid, stake):
    s = explorer()
    grads, info = given_gradients(s)
    returns = {"extrinsic": targets.ReturnRange(jnp.float32(1.0), jnp.float32(1.0 + paid))}
    nothing_new = info.scalars | {"curiosity/novel_share": Mean(jnp.float32(0), jnp.float32(10))}
    info = info._replace(ranges=info.ranges | {"task": returns}, scalars=nothing_new)
    still = {"fast": 0.3, "slow": 0.3, "boredom": 0.5}
    still = {name: jnp.float32(x) for name, x in still.items()}
    curiosity = s.learner.curiosity._replace(**still, updates=jnp.int32(10_000))
    learned, _ = update_fn()(s.learner._replace(curiosity=curiosity), s.ring, grads, info)
    rise = float(learned.learner.curiosity.boredom) - 0.5
    assert rise == pytest.approx(stake * s.agent.curiosity.boredom_up, abs=1e-6)


def test_a_bored_agent_has_shorter_dreams():
    s = explorer()
    lengths = []
    for boredom in (0.0, 1.0):
        state = curiosity(s, boredom=boredom).curiosity
        after, _ = drive.update(
            state, state.fast, jnp.float32(0), jnp.float32(1), s.agent.curiosity, len(HORIZONS)
        )
        lengths.append(int(dreams.horizon_of(s.learner._replace(curiosity=after), s.agent)))
    assert lengths == [HORIZONS[-1], HORIZONS[0]]


@cache
def watchful() -> Scene:
    """The scene with slow copies of the members and without warm-ups."""
    return scene(curiosity__novelty="progress", optimizer__warmup=0)


@cache
def watched():
    """The learner and the metrics of `watchful` after an update."""
    s = watchful()

    def update(learner):
        learned = learn.learn(s.draws, learner, None, s.ring, s.agent)
        return learned.learner, learned.metrics

    return jax.jit(update)(s.learner)


def test_progress_pays_how_far_the_members_novelty_has_fallen_below_that_of_slow_copies():
    s = watchful()
    dreamed = s.dreamed("task")

    def disagreement(members):
        params = s.params._replace(members=members)
        learner = s.learner._replace(params=params, slow_members=None)
        return np.asarray(scene().dreamed("task", learner).novelty)

    slow, fast = disagreement(s.learner.slow_members), disagreement(s.params.members)
    np.testing.assert_allclose(dreamed.novelty, np.maximum(slow - fast, 0), rtol=1e-4, atol=1e-6)
    assert 0 < (np.asarray(dreamed.novelty) > 0).mean() < 1


def test_slow_copies_follow_the_updated_members_at_the_slow_rate():
    s, (after, _) = watchful(), watched()
    old, rate, new = s.learner.slow_members, s.agent.curiosity.slow_rate, after.params.members
    assert differ(new, s.params.members)
    expected = jax.tree.map(lambda a, b: ema(a, b, rate), old, new)
    assert_close(after.slow_members, expected)


@pytest.mark.parametrize(("paid", "share"), [(0.0, 1.0), (0.5, 0.1**0.5), (1.0, 0.1)])
def test_an_acting_policy_is_slower_the_more_its_task_pays_and_one_on_the_side_is_not(paid, share):
    rates = {"task": jnp.float32(paid), "explore": jnp.float32(0)}
    still = {f"{name}/change": jnp.float32(0) for name in rates}

    def found(agent):
        longest = jnp.int32(agent.dream.longest)
        return {
            p.name: float(learn.step_share(p, rates, still, longest, agent)) for p in agent.policies
        }

    assert found(scene().agent) == pytest.approx({"task": share}, rel=1e-5)
    assert found(explorer().agent) == pytest.approx({"explore": 1.0, "task": 1.0})


@pytest.mark.parametrize(("paid", "change"), [(0.0, 0.0), (1.0, 0.0), (0.0, 4.0)])
@pytest.mark.parametrize("part", [1, 2, 4])
def test_a_part_of_the_longest_dreams_is_followed_by_its_root_of_a_step(part, paid, change):
    rates = {"task": jnp.float32(paid), "explore": jnp.float32(0)}
    still = {f"{name}/change": jnp.float32(change) for name in rates}
    for agent in (scene().agent, explorer().agent):
        longest = agent.dream.longest
        for policy in agent.policies:
            whole, short = (
                float(learn.step_share(policy, rates, still, jnp.int32(h), agent))
                for h in (longest, longest // part)
            )
            assert short == pytest.approx(whole * (longest // part / longest) ** 0.5, rel=1e-5)


@pytest.mark.parametrize("size", [0.003, 0.3])
def test_an_actor_takes_the_share_of_its_step_that_changes_its_policy_by_the_limit(size):
    s, one = explorer(), scene()
    old, limit = s.params.behaviour, s.agent.optimizer.actor_kl
    info = learn.UpdateInfo(one.seen, one.batch, {}, {})
    new = jax.tree.map(lambda x, step: x + size * step, old, noise(old, 14))
    changes = s.compiled(learn.policy_changes)(old, new, info)
    nothing = dict.fromkeys(old, jnp.zeros(()))
    longest = jnp.int32(s.agent.dream.longest)
    shares = {
        p.name: learn.step_share(p, nothing, changes, longest, s.agent) for p in s.agent.policies
    }
    made = learn.shortened(old, new, shares)
    changed = s.compiled(learn.policy_changes)(old, made, info)
    for name in s.policies:
        before, after = float(changes[f"{name}/change"]), float(changed[f"{name}/change"])
        assert after == pytest.approx(min(before, limit), rel=0.5) and (before > limit) == (
            size > 0.1
        )
        assert_equal(made[name] | {"actor": None}, new[name] | {"actor": None})


def test_an_update_takes_the_shortened_steps(monkeypatch):
    s = explorer()
    monkeypatch.setattr(learn, "step_share", lambda *args: jnp.float32(0.25))
    grads, info = given_gradients(s)
    monkeypatch.setattr(learn, "gradients", lambda *args: (grads, info))
    after = learn.learn(s.draws, s.learner, None, s.ring, s.agent).learner.params.behaviour
    tried = learn.apply_gradients(s.learner, grads, s.agent)[0].behaviour
    for name, old in s.params.behaviour.items():
        step = jax.tree.map(lambda a, b: a + 0.25 * (b - a), old["actor"], tried[name]["actor"])
        assert_close(after[name]["actor"], step, rtol=1e-6)


def test_slow_critics_and_the_average_follow_the_updated_parameters():
    s, after = explorer(), updated()[0].learner
    cfg, made = s.agent.behaviour, after.params.behaviour
    assert differ(made, s.params.behaviour)
    slow = {
        name: jax.tree.map(
            lambda old, new: ema(old, new, cfg.slow_rate), old, slow_part(made[name])
        )
        for name, old in s.learner.slow.items()
    }
    average = jax.tree.map(
        lambda old, new: ema_from_start(old, new, learn.AVERAGE_RATE, UPDATE + 1),
        s.learner.average,
        made,
    )
    assert_close(after.slow, slow)
    assert_close(after.average, average)


@pytest.mark.parametrize(("name", "size", "share"), [("explore", 0.6, 0.97), ("task", 0.9, 0.2)])
def test_the_entropy_weight_follows_its_own_policy(name, size, share):
    s, after = explorer(), updated()[0].learner.entropy[name]
    most, old = s.policies[name].seeking, s.learner.entropy[name]
    size = ema_from_start(old.advantage, size, targets.ENTROPY_RATE, UPDATE + 1)
    below = targets.MOST_ENTROPY - share
    factor = old.factor * np.exp(targets.FACTOR_RATE * below)
    assert factor < most
    np.testing.assert_allclose(after, (factor, size), rtol=1e-6)


@pytest.mark.parametrize(
    ("scale", "times"), [(0.1, 3.0), (0.29, 30 / 29), (0.31, 1.0), (40.0, 1.0)]
)
def test_an_explorer_walks_more_freely_where_all_places_are_about_as_novel(scale, times):
    s, size, update = explorer(), {"explore/advantage": 0.4, "task/advantage": 0.4}, jnp.int32(0)
    scales = {f"explore/{kind}/return_scale": scale for kind in ("intrinsic", "extrinsic")}
    found = learn.next_seeking(update, s.learner, size | scales, s.agent)
    assert float(found["explore"].advantage) == pytest.approx(0.4 * times)
    assert float(found["task"].advantage) == pytest.approx(0.4)


def test_moments_and_ranges_are_kept_for_the_next_update():
    s = explorer()
    grads, info = given_gradients(s)
    after = updated()[0].learner
    least = normalizer.least_std(s.agent.spec)
    expected = normalizer.follow(s.learner.normalizer, grads.deviations, jnp.int32(UPDATE), least)
    assert_close(after.normalizer, expected)
    assert_equal(after.ranges, info.ranges)
    assert_close(after.seen, rarity.follow(s.learner.seen, grads.shares, jnp.int32(UPDATE)))


def test_the_range_of_the_task_s_returns_is_read_in_the_unit_of_the_batch():
    s = scene()
    rate, unit = max(targets.RETURN_RATE, 1 / (UPDATE + 1)), reward_unit.init(jnp.float32)

    def learner(size):
        given = ReturnRange(jnp.float32(-size), jnp.float32(size))
        ranges = {"task": s.learner.ranges["task"] | {"extrinsic": given}}
        return s.learner._replace(unit=unit, ranges=ranges)

    def after(size):
        info = s.compiled(learn.gradients)(s.draws, learner(size), s.ring)[1]
        return info.ranges["task"]["extrinsic"], info.batch.unit

    (near, _), (far, new) = after(2.0), after(32.0)  # either is earned in full
    assert new.size > 1.5  # the first reward: the unit jumps from 1
    more = far.high - near.high, near.low - far.low
    np.testing.assert_allclose(more, (1 - rate) * 30 / new.size, rtol=1e-4)
    later = learn.in_unit(learner(30.0), new)
    assert_equal(later.ranges["task"]["intrinsic"], s.learner.ranges["task"]["intrinsic"])
    assert_equal(later.unit, new)


def test_what_costs_earn_is_earned_in_full_until_something_is_won():
    s = explorer()
    grads, info = given_gradients(s)
    costs = info.ranges | {
        "task": {"extrinsic": targets.ReturnRange(jnp.float32(-0.2), jnp.float32(0))}
    }
    unknown = reward_unit.init(jnp.float32)
    for unit, earned in ((info.batch.unit, 0.2), (unknown, 1)):
        given = info._replace(ranges=costs, batch=info.batch._replace(unit=unit))
        learned, _ = update_fn()(s.learner, s.ring, grads, given)
        assert float(learned.metrics["task/earned"]) == pytest.approx(earned)


@pytest.mark.parametrize(
    ("members", "stakes"), [(3, (0.0, 0.5, 1.0)), (1, (0, 0, 0)), (0, (0, 0, 0))]
)
def test_boredom_rises_with_what_the_task_pays_if_novelty_is_measured(members, stakes):
    agent = make_agent(ensemble__members=members)
    found = [learn.stake(jnp.float32(paid * targets.PAYS), agent) for paid in (0, 0.5, 3)]
    np.testing.assert_allclose(found, stakes, rtol=1e-6)


def test_moments_are_of_raw_and_not_of_standardised_observations():
    s = scene()
    old, raw = s.learner.normalizer["vector"], s.batch.encoded["vector"]
    least = {"vector": jnp.zeros(2)}
    away = s.gradients.deviations
    new = normalizer.follow(s.learner.normalizer, away, jnp.int32(0), least)["vector"]
    np.testing.assert_allclose(new.mean, raw.mean((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(new.var, raw.var((0, 1)), rtol=1e-4)
    assert differ(old.mean, new.mean)


def test_posteriors_replace_the_latents_of_their_rows_but_not_of_context_rows():
    s, oldest = scene(), NUM_ROWS - M
    expected = jax.tree.map(lambda x: x[oldest:].copy(), LATENTS)
    index = s.batch.sampled
    for b, context in enumerate(time_of(index.slot)):
        rows = slice(context - oldest + 1, context - oldest + 1 + T)
        expected.deter[rows, index.env[b]] = s.seen.deter[:, b]
        expected.ids[rows, index.env[b]] = s.seen.ids[:, b]
    _, latents = ring.history(updated()[1])
    assert_equal(latents, expected)


def test_each_member_is_clipped_by_its_own_gradient():
    s = explorer()
    grads, info = given_gradients(s)
    huge = jax.tree.map(lambda x: x.at[1].multiply(1e4), grads.members)
    after = update_fn()(s.learner, s.ring, grads._replace(members=huge), info)[0].learner
    ours, theirs = (
        jax.tree.map(lambda x: jnp.delete(x, 1, 0), learner.params.members)
        for learner in (after, updated()[0].learner)
    )
    assert_equal(ours, theirs)


def test_gradients_are_means_over_the_mesh_and_those_of_members_are_weighted():
    """On data x ensemble = 2 x 2, with weights that differ between devices."""
    shape = (2, 2)
    on = mesh.make_mesh(*shape, jax.devices()[:4])
    rng = np.random.default_rng(0)
    trunk, members = (rng.normal(size=(*shape, 3)).astype(np.float32) for _ in range(2))
    weight = np.array([[2.0, 5.0], [1.0, 3.0]], np.float32)

    def reduce(trunk, members, weight):
        away = {"vector": Moments(trunk[0, 0] + 1, trunk[0, 0] + 2)}
        task, shares = {"task": -trunk[0, 0]}, trunk[0, 0] + 3
        local = learn.Gradients(trunk[0, 0], members[0], task, away, shares)
        return learn.reduce_gradients(local, weight[0])

    each, same = P("data", "ensemble"), P()
    out = learn.Gradients(same, mesh.MEMBERS, same, same, same)
    found = mesh.sharded(reduce, on, (each, each, each), out)(trunk, members, weight)
    mean = trunk.mean((0, 1))
    assert_close(found.trunk, mean)
    assert_close(found.behaviour["task"], -mean)
    assert_close(found.deviations["vector"], Moments(mean + 1, mean + 2))
    assert_close(found.shares, mean + 3)
    assert_close(found.members, members.sum(0) / weight.sum(0)[:, None])


def test_the_gradients_of_members_are_means_over_the_pairs_that_count():
    s = scene()
    sums, weight = s.members[0], s.members[1].weight[0]
    assert_close(s.gradients.members, jax.tree.map(lambda x: x / weight, sums))


# Evaluation


@cache
def evaluated_walk() -> Trace:
    """An episode of each of N environments."""
    machine = wandering()
    act_fn = machine.algorithm.evaluated["greedy"]

    def run():
        root, ids = jax.random.key(3), jnp.arange(N)
        return evaluation.run_episode(root, (), act_fn, ids, jnp.int32(1), machine)

    return jax.device_get(jax.jit(run)())


def test_an_evaluated_episode_has_rewards_until_its_end_and_none_after_it():
    trace = evaluated_walk()
    length_N = trace.rows.obs["length"][0]
    np.testing.assert_array_equal(trace.outcome.alive.sum(0), length_N)
    time_TN = np.indices(trace.outcome.alive.shape)[0]
    np.testing.assert_array_equal(trace.outcome.alive, time_TN < length_N)
    paid = 10.0 * trace.rows.action + time_TN + 1
    np.testing.assert_array_equal(trace.outcome.reward, np.where(time_TN < length_N, paid, 0))
    assert len(set(length_N)) > 1


@pytest.mark.parametrize("mode", ["mix", "explore"])
def test_the_value_bias_is_the_averaged_task_critic_s_value_minus_the_return(mode):
    s = in_mode(mode)
    length_N, rng = np.array([2, 3, 4, 4]), np.random.default_rng(1)
    time_TN, env_TN = np.indices((5, N))
    truncated = (time_TN >= length_N) & (env_TN % 2 == 0)
    reward = np.where(time_TN < length_N, rng.normal(size=time_TN.shape), 0).astype(np.float32)
    rows, latents = jax.tree.map(lambda x: jnp.asarray(x[:5]), (ROWS, LATENTS))
    rows = rows._replace(truncated=jnp.asarray(truncated))
    trace = Trace(rows, latents, Outcome(jnp.asarray(reward), jnp.asarray(time_TN < length_N), {}))
    found = s.compiled(judging.judge)(s.learner, trace)
    policy, average = s.agent.task, s.learner.average["task"]
    value_TN = 2 * agents.values_fn(s.agent, average, policy, latents)["extrinsic"]
    assert s.learner.unit.size == 2  # of rewards
    gamma = s.agent.behaviour.discount
    for n, length in enumerate(length_N):
        paid = sum(gamma**t * reward[t, n] for t in range(length))
        rest = gamma**length * value_TN[length, n] if truncated[length, n] else 0
        np.testing.assert_allclose(found["value"][n], value_TN[0, n], rtol=1e-4, atol=1e-6)
        expected = value_TN[0, n] - paid - rest
        np.testing.assert_allclose(found["value_bias"][n], expected, rtol=1e-4, atol=1e-5)
