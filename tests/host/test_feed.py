"""Runs in environments that the host steps."""

import runpy
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from dtc.config.errors import ConfigError, NumbersError
from dtc.data import ring
from dtc.envs import catalog
from dtc.host import feed as feeding
from tests.guests import program_of

ROOT = Path(__file__).parents[2]
NUM = 4


class Counter(gymnasium.Env):
    """Shows the episode, the step in it and the action before; ends after 3 to 7 steps."""

    observation_space = spaces.Dict(
        {"count": spaces.Box(-1, 1e6, (3,), np.float32), "kind": spaces.Discrete(3)}
    )
    action_space = spaces.Discrete(3, start=5)
    episodes = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episodes, self.time = 1 if seed is not None else self.episodes + 1, 0
        self.end = int(self.np_random.integers(3, 8))
        return self._see(-1), {}

    def _see(self, action):
        count = np.array([self.episodes, self.time, action], np.float32)
        return {"count": count, "kind": self.time % 3}

    def step(self, action):
        assert action in (5, 6, 7)
        self.time += 1
        is_over, is_cut = self.time == self.end, self.time == 5
        return self._see(action), float(self.time), is_over, is_cut and not is_over, {}


if "dtc/Counter-v0" not in gymnasium.registry:
    gymnasium.register("dtc/Counter-v0", Counter, max_episode_steps=20)


def counting(guest="mix", mesh_shape=(1, 1), **changes):
    changes = {"env__name": "gymnasium/dtc/Counter-v0", "env__num_envs": NUM} | changes
    changes |= {"run__eval_episodes": NUM, "run__steps": 1000}
    return program_of(guest, mesh_shape, **changes)


def compiled(program):
    carrier = program.start(0)
    return program.lower(carrier)(), carrier


@pytest.fixture(scope="module", params=["overridden", pytest.param("mix", marks=pytest.mark.slow)])
def run(request):
    """A program, its carrier after 6 iterations, the info of them, and its train call."""
    program = counting(request.param)
    train, carrier = compiled(program)
    carrier, first = train(carrier, 2)
    carrier, second = train(carrier, 4)
    return program, carrier, (first, second), train


def history(carrier):
    rows, _ = ring.history(carrier.replay)
    return rows


@pytest.mark.slow
def test_rows_tell_the_story_of_each_environment_in_order(run):
    rows = history(run[1])
    episode, time, before = np.moveaxis(rows.obs["obs_count"], -1, 0)
    assert rows.first[0].all() and (time == 0).tolist() == rows.first.tolist()
    assert (rows.reward == time).all() and (rows.obs["obs_kind"] == time % 3).all()
    follows = ~rows.first[1:]
    assert (time[1:] == time[:-1] + 1)[follows].all()
    assert (before[1:] == rows.action[:-1] + 5)[follows].all()  # the action executed, from 5 on
    assert (rows.first[1:] == rows.last[:-1]).all() and (np.diff(episode, axis=0) >= 0).all()
    assert rows.terminated.any() and rows.truncated.any()
    assert not (rows.terminated & rows.truncated).any()


@pytest.mark.slow
def test_counts_are_those_of_the_rows_that_updates_have_taken(run):
    program, carrier, infos, _ = run
    rows, prefill = history(carrier), program.machine.prefill
    taken = 6 * program.machine.collect_steps
    assert len(rows.first) == prefill + taken
    new = jax.tree.map(lambda x: x[prefill:], rows)
    # A call is a step unless it shows a first observation; it shows what the next row holds.
    steps = sum(int(info.collected.env_steps) for info in infos)
    shown = np.concatenate([new.first[1:], (new.last[-1:])])
    assert steps == (~shown).sum() == sum(int(i.collected.actions.sum()) for i in infos)
    assert all(np.isfinite(x) for info in infos for x in info.mean.values())
    assert set(feeding.METRICS) <= set(infos[0].mean)
    assert int(carrier.update) == 6 and carrier.episodes is None and carrier.acting is None


def test_latents_are_those_of_acting_and_differ_between_rows(run):
    _, latents = ring.history(run[1].replay)
    for x in jax.tree.leaves(latents):
        assert len(np.unique(np.asarray(x, np.float32).reshape(len(x), -1), axis=0)) > 10


@pytest.mark.slow
@pytest.mark.parametrize("plans", [0, 2])
def test_acting_reads_a_part_of_the_learner_only(plans):
    program = counting(dream__plans=plans)
    learner = program.shapes().learner
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(learner)]
    read = {paths[i] for i in program.feed.player.apart.reads}
    assert any(".trunk" in p for p in read) and any("normalizer" in p for p in read)
    assert any(".members" in p for p in read) == (plans > 0)
    assert not any(word in p for p in read for word in (".opt", ".slow", ".average"))


def test_what_acting_reads_is_a_copy_that_donation_leaves_alone(run):
    program, carrier, *_ = run
    program.feed.player.read(carrier.root, carrier.learner)
    kept = [np.array(x) for x in program.feed.player.kept]
    leaves = jax.tree.leaves(carrier.learner)
    own = [leaves[i] for i in program.feed.player.apart.reads]
    assert all(np.array_equal(x, y) for x, y in zip(kept, own, strict=True))
    pointers = {x.unsafe_buffer_pointer() for x in own}
    assert not pointers & {x.unsafe_buffer_pointer() for x in program.feed.player.kept}


@pytest.mark.slow
def test_a_restored_run_cuts_the_episodes_before_and_begins_new_ones(run):
    program, carrier, _, train = run
    filled, steps = int(carrier.replay.filled), program.machine.collect_steps
    carrier = jax.tree.map(lambda x: x.copy(), carrier)
    carrier = program.from_checkpoint(program.to_checkpoint(carrier))
    before = jax.tree.map(lambda x: x[-1], history(carrier))
    carrier, info = train(carrier, 1)
    rows = history(carrier)
    cut, begun = (jax.tree.map(lambda x, i=i: x[i], rows) for i in (filled, filled + 1))
    assert cut.truncated.all() and not cut.first.any() and not cut.reward.any()
    assert all(np.array_equal(cut.obs[k], before.obs[k]) for k in before.obs)
    assert begun.first.all() and not rows.first[filled - 1 : filled + 1].all()
    assert int(info.collected.env_steps) == NUM * (steps - 1), "the new episodes' first rows"


def test_a_seed_is_one_run_and_another_seed_another(run):
    program = run[0]

    def obs_of(seed):
        program.feed.seed = seed
        return history(program.start(seed)).obs["obs_count"]

    assert np.array_equal(obs_of(3), obs_of(3)) and not np.array_equal(obs_of(3), obs_of(4))


@pytest.mark.slow
def test_evaluation_reports_whole_episodes(run):
    program, carrier, *_ = run
    played = program.feed.stage.play("greedy", NUM, carrier.root, carrier.learner, 7)
    outcome, rows = played.trace.outcome, played.trace.rows
    length = outcome.alive.sum(0)
    assert ((length >= 3) & (length <= 5)).all()
    for i, n in enumerate(length):
        assert rows.last[n, i] and not rows.last[:n, i].any()
        assert (outcome.reward[:n, i] == np.arange(1, n + 1)).all()
        still = rows.obs["obs_count"][n:, i] == rows.obs["obs_count"][n, i]
        assert still.all() and not outcome.reward[n:, i].any()
    found = jax.device_get(program.evaluate(carrier.root, carrier.learner, jnp.int32(7)))
    assert found["length"] == pytest.approx(length.mean())
    assert found["return"] == pytest.approx((length * (length + 1) / 2).mean())
    block = program.block(NUM, "sampled")(carrier.root, carrier.learner, jnp.int32(8), jnp.int32(2))
    assert block.returns.shape == (NUM,) and (np.asarray(block.returns) >= 6).all()
    random = program.references["random"](carrier.root, jnp.int32(1))
    assert 3 <= float(random["length"]) <= 5
    for probe in {"open_loop"} & set(program.probes):
        shown = program.probes[probe](carrier.root, carrier.learner, jnp.int32(1))
        assert int(np.asarray(shown.alive).sum()) in (3, 4, 5) and "value_bias" in found
    watched = program.watch(carrier.root, carrier.learner, jnp.int32(1))
    assert watched.seen["obs_kind"].shape[1:] == (1, 3)


@pytest.mark.slow
def test_ppo_learns_from_rows_of_the_host_and_sees_what_ended_them():
    program = counting("ppo", run__collect_steps=16)
    train, carrier = compiled(program)
    batch = program.feed.ready
    rows, reached = batch.collected.rows, batch.collected.reached
    last = reached.last
    assert last.any() and (rows.first[1:] == last[:-1]).all() and not reached.first.any()
    assert (reached.obs["obs_count"][..., 1] == reached.reward).all()
    assert (
        reached.obs["obs_count"][..., 0] == rows.obs["obs_count"][..., 0]
    ).all()  # the same episode
    carrier, info = train(carrier, 3)
    assert int(info.collected.env_steps) == 3 * 16 * NUM
    assert all(np.isfinite(x) for x in info.mean.values())
    program.from_checkpoint(program.to_checkpoint(carrier))
    train(carrier, 1)


@pytest.mark.slow
def test_a_mesh_of_several_devices_takes_the_same_rows():
    shapes = ((1, 1), (2, 2))
    one, two = (history(counting("overridden", shape).start(0)) for shape in shapes)
    assert jax.tree.all(jax.tree.map(np.array_equal, one.obs, two.obs))
    program = counting("overridden", (2, 2))
    train, carrier = compiled(program)
    assert program.feed.in_turn
    carrier, info = train(carrier, 2)
    assert all(np.isfinite(x) for x in info.mean.values())


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr(feeding.jax, "process_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"stepped by one host, and this run has 2 pr.*Use one"):
        counting()


@pytest.mark.filterwarnings("ignore:.*The obs returned")
def test_numbers_that_are_not_finite_end_the_run():
    env = catalog.make("gymnasium/dtc/Counter-v0").host(2, "next_step")
    env.reset(0)
    for one in env.envs.envs:
        one.unwrapped._see = lambda action: {"count": np.full(3, np.nan, np.float32), "kind": 0}
    with pytest.raises(NumbersError, match=r"^env.name=gymnasium/dtc/Counter-v0 gave NaN"):
        env.step(np.zeros(2, np.int32))


@pytest.mark.parametrize(
    ("typed", "train"),
    [
        ("CartPole-v1 --steps=9", "--config.env.name=gymnasium/CartPole-v1 --steps=9"),
        ("--workdir=run --resume", "--workdir=run --resume"),
        ("", None),
    ],
)
def test_the_script_is_train_with_a_shorter_name(typed, train, monkeypatch, capsys):
    called = []
    monkeypatch.setattr("dtc.commands.__main__.script", lambda argv: called.append(argv) or 0)
    monkeypatch.setattr("sys.argv", ["tools/feed.py", *typed.split()])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "tools" / "feed.py"), run_name="__main__")
    assert ended.value.code == (0 if train else 2)
    assert called == ([["train", *train.split()]] if train else [])
    assert train or "Name an environment" in capsys.readouterr().err
