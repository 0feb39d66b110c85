"""What the loop does about NaN, bad disks and replicas that differ, in this process."""

import dataclasses
import errno
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.config import settings
from dtc.config.errors import NumbersError
from dtc.core.optimizer import make
from dtc.host import checkpoint, ending, identity, loop, pace, rescue, start
from dtc.host.command import Init
from dtc.host.devices import Devices
from dtc.host.pace import Pace, Window
from dtc.host.steps import read_meta
from dtc.host.totals import Totals
from dtc.training.trainer import CallInfo
from tests.guests import config_of, demonstrations, fresh, registered, shared
from tests.toys import pg

pytestmark = [
    pytest.mark.faults,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

HERE = Devices(jax.device_count(), True, "Simulated devices.")


def sick(is_hit):
    """The toy `pg`, whose parameters and loss become NaN in the updates that `is_hit` names."""

    def maker(cfg, spec, precision):
        whole = pg(cfg, spec, precision)

        def learn(draws, learner, collected, stored):
            learned = whole.learn(draws, learner, collected, stored)
            bad = jnp.where(is_hit(draws), jnp.nan, 0.0)
            params = jax.tree.map(lambda x: x + bad, learned.learner)
            return learned._replace(learner=params, metrics={"loss": learned.metrics["loss"] + bad})

        return dataclasses.replace(whole, learn=learn)

    return maker


def launch(workdir, is_hit, updates=40, resume=False, init=None, **changes):
    """Trains `sick` in this process; returns the exit status."""
    changes = {"run__log_every": 1, "run__checkpoint_every": 10, "run__eval_every": 1000} | changes
    with registered({"pg": sick(is_hit)}):
        cfg = config_of("pg", (-1, 1), run__updates=updates, **changes)
        cfg = settings.on_devices(cfg, HERE.num)
        return loop.run(cfg, workdir, resume, HERE, ["dtc train"], init=init)


def records(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def never(draws):
    return draws.update < 0


def test_bad_updates_lead_back_with_fresh_draws_and_training_goes_on(tmp_path):
    first = jax.random.key_data(jax.random.key(0))[1]

    def unlucky(draws):  # from update 12 on, until the root is another one
        return (draws.update >= 12) & (jax.random.key_data(draws.root)[1] == first)

    assert launch(tmp_path, unlucky) == 0
    trained = [r for r in records(tmp_path) if "loss" in r]
    assert [r["update"] for r in trained] == list(range(1, 41)), "each update once"
    assert all(r["health/skipped"] == 0 and r["loss"] is not None for r in trained)
    assert read_meta(tmp_path / "checkpoints/40")["run"]["rollbacks"] == 1


def test_three_attempts_in_vain_end_with_status_78_and_a_report(tmp_path):
    with pytest.raises(NumbersError, match=r"3 times after going back .* not finite are loss"):
        launch(tmp_path, lambda draws: draws.update >= 12)
    assert NumbersError.status == 78
    report = json.loads((tmp_path / rescue.REPORT).read_text())
    assert report["losses"] == ["loss"] and report["leaves"] == ["policy"]
    assert "10" in [p.name for p in (tmp_path / "checkpoints").iterdir()]
    assert launch(tmp_path, never, updates=20, resume=True) == 0, "a person may go on from there"


def test_with_every_checkpoint_damaged_it_ends_with_status_78_and_a_report(tmp_path, monkeypatch):
    go_back = loop.Run._go_back

    def damaged(self, carrier, why):
        self.checkpointer.wait()
        for file in tmp_path.glob("checkpoints/*/carrier/d/*"):
            file.write_bytes(b"")
        return go_back(self, carrier, why)

    monkeypatch.setattr(loop.Run, "_go_back", damaged)
    with pytest.raises(NumbersError, match=r"no readable checkpoint \(found: 10\).* are loss"):
        launch(tmp_path, lambda draws: draws.update >= 12)
    assert json.loads((tmp_path / rescue.REPORT).read_text())["losses"] == ["loss"]


def test_single_bad_updates_are_skipped_and_told(tmp_path, capsys):
    assert launch(tmp_path, lambda draws: draws.update % 7 == 3, updates=12) == 0
    trained = [r for r in records(tmp_path) if "loss" in r]
    assert [r["update"] for r in trained if r["health/skipped"]] == [4, 11]
    assert [r["update"] for r in trained if r["loss"] is None] == [4, 11]
    assert "1 update was not finite and changed nothing" in capsys.readouterr().out
    assert (tmp_path / "figures" / "learning_curve.png").exists()


@pytest.mark.parametrize(("bad", "status"), [((10,), 0), ((10, 12), 74)])
def test_a_failed_save_is_told_and_only_the_last_one_counts(
    tmp_path, capsys, monkeypatch, bad, status
):
    save = checkpoint.ocp.AsyncCheckpointer.save

    def full(self, path, *args, **more):
        if int(path.name) in bad:
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(self, path, *args, **more)

    monkeypatch.setattr(checkpoint.ocp.AsyncCheckpointer, "save", full)
    assert launch(tmp_path, never, updates=12) == status
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("Checkpoint 10 was")]
    assert len(lines) == 1 and "No space left" in lines[0] and "tries again" in lines[0]


def test_parameters_of_another_run_are_loaded_by_pattern(tmp_path):
    assert launch(tmp_path / "old", never, updates=6) == 0
    init = Init(tmp_path / "old", ("learner/policy",))
    assert launch(tmp_path / "new", never, updates=1, init=init) == 0
    assert launch(tmp_path / "fresh", never, updates=1) == 0
    old, new, other = (
        checkpoint.verify.arrays(tmp_path / name / f"checkpoints/{step}")["learner/policy"]
        for name, step in (("old", 6), ("new", 1), ("fresh", 1))
    )
    assert np.abs(new - old).max() < np.abs(other - old).max() / 2
    with pytest.raises(settings.ConfigError, match="matches no array"):
        launch(tmp_path / "x", never, updates=1, init=Init(tmp_path / "old", ("learner/q*",)))


def test_a_change_of_length_is_recorded(tmp_path):
    assert launch(tmp_path, never, updates=2) == 0
    assert launch(tmp_path, never, updates=3, resume=True) == 0
    (line,) = (tmp_path / identity.CHANGES).read_text().splitlines()
    assert json.loads(line)["changed"] == {"run.updates": [2, 3]}
    assert json.loads(line)["update"] == 2


@pytest.mark.parametrize(("guest", "leaf"), [("ppo", 0), ("members", 0), ("members", 1)])
def test_one_flipped_bit_on_one_device_is_found(guest, leaf):
    program = shared(guest, (4, 2))
    inspector, carrier = rescue.Inspector(program), fresh(program)
    assert inspector.divergence(carrier) == ""
    leaves, tree = jax.tree.flatten(carrier.learner)
    x, odd = leaves[leaf], 3
    parts = []
    for i, shard in enumerate(x.addressable_shards):
        own = np.array(shard.data)
        if i == odd:
            own.reshape(-1).view(np.uint32)[0] ^= 1
        parts.append(jax.device_put(own, shard.device))
    leaves[leaf] = jax.make_array_from_single_device_arrays(x.shape, x.sharding, parts)
    flipped = carrier._replace(learner=jax.tree.unflatten(tree, leaves))
    assert "devices [3] differ" in inspector.divergence(flipped)


def test_counters_do_not_wrap():
    count = np.int32(2**31 - 1)
    tx = make(1e-3, config_of("mix").optimizer, warmup=10)
    params = {"w": jnp.ones(3)}
    state = jax.tree.map(
        lambda x: jnp.full_like(x, count) if x.dtype == jnp.int32 else x, tx.init(params)
    )
    updates, _ = tx.update({"w": jnp.ones(3)}, state, params)
    assert float(jnp.abs(updates["w"]).max()) < 1e-2, "not 1e5: the count has not wrapped"
    cfg = config_of("ppo")
    own, R, N = Pace(cfg), cfg.run.collect_steps, cfg.env.num_envs
    assert own.most * R * N < 2**31, "environment steps of a call"
    assert own.period * R < 2**31, "calls of an environment between two roots"
    assert own.epoch(10**9) == 10**9 // own.period
    before = own.period - 3  # a call ends where the root changes
    own.limit = 100
    assert own.next_size(before, 0, 10**12, "update") <= 3


def test_a_renewed_root_repeats_no_draw_and_counts_calls_from_zero():
    carrier = fresh(shared("ppo", (4, 2)))
    after = rescue.renewed(carrier, 1)
    assert int(after.episodes.env.calls.max()) == 0
    assert (jax.random.key_data(after.root) != jax.random.key_data(carrier.root)).any()
    assert after.episodes.env.calls.sharding == carrier.episodes.env.calls.sharding


def test_calls_are_short_and_their_means_are_weighted():
    own = Pace(config_of("ppo", run__log_every=1000))
    sizes = []
    for _ in range(12):
        sizes.append(own.next_size(0, 0, 10**9, "update"))
        own.note(sizes[-1], 0.1 * sizes[-1])  # 0.1 s an iteration
    assert sizes[:4] == [1, 2, 4, 8] and sizes[-1] == int(pace.SECONDS / 0.1)
    window = Window()
    for mean, num, skipped in ((1.0, 2, 0), (4.0, 2, 1), (np.nan, 3, 3)):
        window.add(CallInfo({"loss": mean}, None, skipped, 0), num, 1.0)
    assert window.metrics() == {"loss": 2.0} and window.record() == {"health/skipped": 4}


def test_given_rows_that_are_not_finite_are_refused():
    (rows, _) = demonstrations(8)
    start.check_finite(rows)
    reward = np.array(rows.reward)
    reward[3, 2] = np.inf
    with pytest.raises(settings.ConfigError, match="rows: reward holds NaN or infinity"):
        start.check_finite(rows._replace(reward=reward))


def test_figures_survive_records_without_numbers(tmp_path):
    names = ("update", "env_steps", "seconds")
    lines = [dict.fromkeys(names, i) | {"loss": None, "eval/return": None} for i in range(3)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
    program = shared("ppo", (4, 2))
    totals = Totals(baselines={"random": float("nan")})
    ending.Pictures(tmp_path, program).draw(fresh(program), totals, print)
