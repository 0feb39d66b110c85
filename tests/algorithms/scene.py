"""A tiny curious agent in the middle of training, and its parts compiled separately.

Nothing has its initial value: parameters are noise, slow and averaged networks differ from the
learning ones, and return ranges, curiosity and moments have distinct values. A part that reads the
wrong value therefore changes the result. A row's reward identifies the row: it is the index of its
environment plus its time / 100.
"""

import inspect
from functools import cache, cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.algorithms.curious import agent as agents
from dtc.algorithms.curious import batch as batches
from dtc.algorithms.curious import dreams, learn, model
from dtc.algorithms.curious.agent import Agent, Learner
from dtc.algorithms.curious.controls import NOVELTIES
from dtc.behaviour.policy import Policy
from dtc.behaviour.targets import ReturnRange, Seeking
from dtc.core import distributions as dist
from dtc.core.keys import Draws
from dtc.core.nets import Precision
from dtc.core.normalizer import Moments
from dtc.core.reward_unit import RewardUnit
from dtc.core.types import ArraySpec, Environment, EnvSpec, Latent, Row, TimeStep
from dtc.curiosity import drive, rarity
from dtc.curiosity.drive import CuriosityState
from dtc.data import ring
from dtc.data.codec import Codec
from dtc.data.ring import Layout
from tests.programs import smoke_config

A, N, M, B, T, STARTS, MEMBERS, NUM_BINS = 3, 4, 12, 4, 5, 8, 3, 21
HORIZONS, UPDATE, NUM_ROWS = (2, 4), 7, 20  # more rows than slots: the ring has wrapped
SIZES = {
    "env__num_envs": N,
    "replay__slots": M,
    "replay__batch": B,
    "replay__length": T,
    "replay__frontier": 8,
    "replay__candidates": 1,
    "model__deter": 8,
    "model__groups": 3,
    "model__hidden": 8,
    "model__units": 8,
    "model__blocks": 2,
    "model__bins": NUM_BINS,
    "ensemble__members": MEMBERS,
    "dream__starts": STARTS,
    "dream__horizons": HORIZONS,
    "dream__chunk": 2,
    "behaviour__pool_units": 4,
    "behaviour__intrinsic_discount": 0.9,
    "replay__prefill": 8,
}


class WalkState(NamedTuple):
    """Step and length of an episode."""

    step: jax.Array  # [] int32
    length: jax.Array  # [] int32, 2-4


def walk(is_box: bool = False) -> Environment:
    """An environment whose reward reveals the action: 10 x action + step.

    Episodes of even length terminate, others are truncated. Actions are 0..2, of which step % 3 is
    masked; or a box [2, 6].
    """

    def show(state, reward):
        is_over = state.step >= state.length
        return TimeStep(
            obs={"step": state.step.astype(jnp.uint8), "length": state.length.astype(jnp.uint8)},
            reward=jnp.float32(reward),
            terminated=is_over & (state.length % 2 == 0),
            truncated=is_over & (state.length % 2 == 1),
            first=state.step == 0,
            cost=jnp.zeros(0),
            action_mask=None if is_box else jnp.arange(A) != state.step % A,
            info={},
        )

    def reset(key, params):
        state = WalkState(jnp.int32(0), jax.random.randint(key, (), 2, 5))
        return state, show(state, 0.0)

    def step(key, state, action, params):
        state = WalkState(state.step + 1, state.length)
        asked = action[0] if is_box else action
        return state, show(state, 10.0 * asked + state.step)

    def encode(obs):
        return {"vector": jnp.stack([obs["step"], obs["length"]]).astype(jnp.float32)}

    number = ArraySpec((), jnp.uint8, low=0, high=4)
    box = ArraySpec((1,), jnp.float32, low=2.0, high=6.0)
    spec = EnvSpec(
        name="walk",
        obs={"step": number, "length": number},
        action=box if is_box else ArraySpec((), jnp.int32, num_classes=A),
        max_steps=4,
        encode=encode,
        has_action_mask=not is_box,
    )
    return Environment(spec, params=(), reset=reset, step=step)


WALK = walk()


def make_rows() -> Row:
    """Rows of random walks in every environment, [NUM_ROWS, N, ...], oldest first.

    The reward identifies the row: environment + time / 100.
    """
    rng = np.random.default_rng(4)
    step = np.zeros((NUM_ROWS, N), np.uint8)
    length = np.zeros((NUM_ROWS, N), np.uint8)
    for n in range(N):
        lengths = 2 + (np.arange(NUM_ROWS) + n) % 3
        length[:, n] = np.repeat(lengths, lengths + 1)[:NUM_ROWS]
        step[:, n] = np.concatenate([np.arange(x + 1) for x in lengths])[:NUM_ROWS]
    mask = np.arange(A) != step[..., None] % A
    action = np.argmax(rng.uniform(size=mask.shape) * mask, -1).astype(np.int32)
    time, env = np.indices((NUM_ROWS, N))
    return Row(
        obs={"step": step, "length": length},
        reward=(env + time / 100).astype(np.float32),
        terminated=(step == length) & (length % 2 == 0),
        truncated=(step == length) & (length % 2 == 1),
        first=step == 0,
        action=action,
        action_mask=mask,
    )


def make_latents() -> Latent:
    """Latents stored with the rows: noise that begins with time and environment."""
    rng = np.random.default_rng(5)
    time, env = np.indices((NUM_ROWS, N))
    deter = rng.uniform(-1, 1, (NUM_ROWS, N, 8))
    deter[..., 0], deter[..., 1] = env, time / 100
    ids = rng.integers(0, 4, (NUM_ROWS, N, 3))
    return Latent(deter.astype(np.float32), ids.astype(np.uint8))


ROWS, LATENTS = make_rows(), make_latents()


def time_of(slot):
    """The time of the row that the full ring holds in a slot."""
    oldest = NUM_ROWS - M
    return oldest + (np.asarray(slot) - oldest) % M


@cache
def stored_ring(
    has_latents: bool = True, reward_times: float = 1.0, tries: bool = False
) -> ring.Ring:
    """A ring of M slots after all rows; it has wrapped, and its oldest rows are overwritten.

    `tries`: the policies of `explore` took turns: the task policy played every other episode,
    except in every third row, which the other policy played.
    """
    rows = ROWS._replace(reward=np.float32(reward_times) * ROWS.reward)
    if tries:
        is_turn = (np.cumsum(rows.first, 0) + np.arange(N)) % 2 == 0
        rows = rows._replace(extras=is_turn ^ (np.arange(NUM_ROWS)[:, None] % 3 == 0))

    def codec(tree):
        return Codec.of(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), tree))

    def fill() -> ring.Ring:
        stored = ring.init(N, M, Layout(codec(rows), codec(LATENTS) if has_latents else None))
        for i in range(0, NUM_ROWS, 2):
            part = jax.tree.map(lambda x, i=i: jnp.asarray(x[i : i + 2]), (rows, LATENTS))
            stored = ring.add(stored, *part)
        return stored

    return jax.jit(fill)()


def make_agent(**changes) -> Agent:
    """A tiny agent on the walk, with changes such as behaviour__mode='explore'."""
    cfg = smoke_config(**(SIZES | changes))
    return agents.make(cfg, WALK.spec, Precision(), NOVELTIES[cfg.curiosity.novelty])


def noise(tree, seed: int):
    """Noise in place of every float leaf, such that heads predict moderate, varied values."""
    rng = np.random.default_rng(seed)

    def one(path, x):
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return jnp.zeros(x.shape, x.dtype)
        name = jax.tree_util.keystr(path[-4:])
        value = rng.normal(size=x.shape)
        if "scale" in name:
            value = 1 + 0.3 * value
        elif "bias" in name:
            value = 0.3 * value
        else:
            value = 1.5 * value / np.sqrt(x.shape[-2])
        if x.shape == (NUM_BINS,):  # far bins are unlikely: they stand for 5e8
            value = value - 1.6 * np.log1p(np.abs(dist.twohot_bins(NUM_BINS)))
        if name.endswith("['cont']['Dense_0']['bias']"):  # neither sure nor impossible
            value = value + 1.5
        return jnp.asarray(value, x.dtype)

    return jax.tree_util.tree_map_with_path(one, tree)


def some_shares():
    """Shares of hashed observations, some of them 0."""
    rng = np.random.default_rng(9)
    drawn = rng.random((rarity.TABLES, rarity.BUCKETS)) * (rng.random(rarity.BUCKETS) < 0.5)
    return jnp.asarray(drawn / drawn.sum(-1, keepdims=True), jnp.float32)


def make_learner(agent: Agent) -> Learner:
    """A learner in the middle of training, with different values in each part."""
    shapes = jax.eval_shape(partial(agents.init, agent=agent), jax.random.key(0))
    opt = jax.tree.map(jnp.square, noise(shapes.opt, 1))
    ranges = {
        p.name: {
            r.name: ReturnRange(jnp.float32(0.1 + 0.2 * i), jnp.float32(2.9 + 0.3 * i))
            for i, r in enumerate(p.rewards)
        }
        for p in agent.policies
    }
    return Learner(
        params=noise(shapes.params, 0),
        normalizer={"vector": Moments(jnp.array([1.5, 2.5]), jnp.array([2.0, 0.5]))},
        unit=RewardUnit(jnp.float32(2.0), jnp.float32(0.5)),
        opt=opt,
        slow=noise(shapes.slow, 2),
        average=noise(shapes.average, 3),
        slow_members=noise(shapes.slow_members, 4),
        ranges=ranges,
        entropy={
            p.name: Seeking(jnp.float32(0.8 * p.seeking), jnp.float32(0.3 + 0.1 * i))
            for i, p in enumerate(agent.policies)
        },
        curiosity=CuriosityState(
            fast=jnp.float32(0.05),
            slow=jnp.float32(0.08),
            spread=jnp.float32(1e-4),
            peak=jnp.float32(0.09),
            updates=jnp.int32(UPDATE),
            boredom=jnp.float32(0.3),
            bucket=jnp.int32(1),
        ),
        seen=None if shapes.seen is None else some_shares(),
    )


class Scene:
    """An agent, its learner and its ring; parts of an update, each compiled when it is asked for.

    A name that ends in _fn is a compiled part, the name without it what it gives here.
    """

    def __init__(self, **changes):
        self.agent = make_agent(**changes)
        self.learner = make_learner(self.agent)
        self.ring = stored_ring(
            self.agent.replay.latents, tries=self.agent.acting != self.agent.task
        )
        self.draws = Draws(jax.random.key(9), jnp.int32(UPDATE))
        self._compiled = {}

    @property
    def params(self):
        """The learner's parameters."""
        return self.learner.params

    @property
    def policies(self):
        """The policies by name."""
        return {p.name: p for p in self.agent.policies}

    def compiled(self, part):
        """jit of a part of the update, with the arguments of the part but the agent.

        Each part is compiled once for a policy, however often and from wherever it is called.
        """
        signature = inspect.signature(part)

        def call(*args, **named):
            named = {"agent": self.agent} | signature.bind_partial(*args, **named).arguments
            fixed = {k: x for k, x in named.items() if isinstance(x, Agent | Policy)}
            key = (part, fixed.get("policy"))
            if key not in self._compiled:
                self._compiled[key] = jax.jit(partial(part, **fixed))
            return self._compiled[key](**{k: x for k, x in named.items() if k not in fixed})

        return call

    @cached_property
    def batch(self):
        """The update's batch."""
        return self.compiled(batches.sample)(self.draws, self.learner, self.ring)

    @cached_property
    def uniform(self):
        """The uniform numbers for the posterior's samples."""
        return self.compiled(batches.observe_noise)(self.draws, self.batch)

    @property
    def trunk_loss_fn(self):
        """(trunk, batch, uniform) -> (out, TrunkInfo)."""
        return self.compiled(model.trunk_loss)

    @cached_property
    def trunk_loss(self):
        """The differentiable outputs and the TrunkInfo."""
        return self.trunk_loss_fn(self.params.trunk, self.batch, self.uniform)

    @property
    def seen(self):
        """The trunk's posterior states."""
        return self.trunk_loss[1].seen

    @property
    def terms(self):
        """The trunk's loss terms, [T, B]."""
        return self.trunk_loss[1].terms

    @property
    def members_fn(self):
        """(members, seen, terms, batch, novel_from) -> (gradients, sums, scalars)."""
        return self.compiled(model.member_gradients)

    @cached_property
    def members(self):
        """The members' (gradients, sums, scalars)."""
        return self.members_fn(
            self.params.members, self.seen, self.terms, self.batch, self.novel_from
        )

    @property
    def novel_from(self):
        """The novelty above which a transition counts as novel."""
        return drive.novel_from(self.learner.curiosity)

    @property
    def starts_fn(self):
        """(draws, learner, seen, batch) -> starts."""
        return self.compiled(dreams.choose_starts)

    @cached_property
    def starts(self):
        """The starts of dreams."""
        return self.starts_fn(self.draws, self.learner, self.seen, self.batch)

    @property
    def teacher(self):
        """The learner as lessons read it, with ranges in the batch's unit of rewards."""
        return learn.in_unit(self.learner, self.batch.unit)

    def dreamed(self, name, learner=None):
        """The dreams of a policy."""
        learner = self.learner if learner is None else learner
        dream = self.compiled(dreams.dream)
        return dream(self.draws, learner, learner.params, self.starts, self.policies[name])

    def lesson(self, name, learner=None, starts=None, dreamed=None):
        """The DreamLesson of a policy, from its own dreams or given ones."""
        learner = self.teacher if learner is None else learner
        starts = self.starts if starts is None else starts
        dreamed = self.dreamed(name) if dreamed is None else dreamed
        learn_in_dreams = self.compiled(dreams.learn_in_dreams)
        policy = self.policies[name]
        return learn_in_dreams(self.draws, learner, learner.params, starts, dreamed, policy=policy)

    def replay_value(self, name, start_return):
        """The replay-value loss of a policy and its gradients."""
        replay_value_gradients = self.compiled(dreams.replay_value_gradients)
        args = (self.learner, self.params.behaviour[name], self.seen, self.starts, start_return)
        return replay_value_gradients(*args, self.batch, policy=self.policies[name])

    def run_page(self, agent):
        """`learn.gradients`, run with this scene's compiled parts."""
        parts = ("sample", "trunk_loss", "member_gradients", "choose_starts", "dream")
        with pytest.MonkeyPatch.context() as patch:
            for name in (*parts, "learn_in_dreams", "replay_value_gradients"):
                patch.setattr(learn, name, self.compiled(getattr(learn, name)))
            return learn.gradients(self.draws, self.learner, self.ring, agent)[0]

    @cached_property
    def gradients(self):
        """Raw gradients of the update."""
        return self.run_page(self.agent)


@cache
def scene(**changes) -> Scene:
    """The scene with these settings, shared by all tests."""
    return Scene(**changes)
