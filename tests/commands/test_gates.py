"""The gates: passing, results read from a run, and resuming."""

import dataclasses
import json
import sys
import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dtc.configs import base

from dtc.commands import calibration, episodes, foresight, gate_table, gates, measures
from dtc.commands.gate_table import GATES, Bar, Gate
from dtc.config import settings as config
from dtc.data import ring
from dtc.envs import catalog, names
from dtc.host import command as host_command
from dtc.host import recorded, writers
from tests.docs.pages import ROOT
from tests.programs import program_on

RNG = np.random.default_rng(0)
ATLEAST = Gate((), measures.returns, (Bar("return", ">=", 40, 58), Bar("bad", "<=", 2, None)))


def figures(value, bad=0.0):
    return {"return": value, "bad": bad, "minutes": 1.0}


def test_every_seed_must_pass():
    def passed(*values):
        rows = gates.summary(ATLEAST, {"ours": [figures(v) for v in values]})
        return rows[0]["passed"], rows[0]["goal_met"]

    assert passed(60, 59, 58) == (True, True)
    assert passed(60, 59, 40) == (True, False)
    assert passed(60, 59, 39.9) == (False, False)
    assert passed(60, 59, float("nan")) == (False, False)


def test_the_worst_seed_is_the_one_furthest_from_the_bar():
    rows = gates.summary(ATLEAST, {"ours": [figures(50, 1), figures(70, 3)]})
    assert (rows[0]["worst"], rows[1]["worst"]) == (50, 3)
    assert not rows[1]["passed"]


def test_the_interquartile_mean_drops_the_outer_quarters():
    assert gates.interquartile_mean([0, 1, 2, 3, 4, 5, 6, 700]) == np.mean([2, 3, 4, 5])
    assert gates.interquartile_mean([1, 2, 6]) == pytest.approx((0.25 * 1 + 2 + 0.25 * 6) / 1.5)
    assert gates.interquartile_mean([5]) == 5


def test_a_seed_that_has_its_result_is_not_run_again(tmp_path, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("ran")

    monkeypatch.setattr(gates.subprocess, "run", never)
    (tmp_path / "result.json").write_text(json.dumps(figures(7.0)))
    assert gates.run_seed(ATLEAST, tmp_path, 0, ()) == figures(7.0)
    with pytest.raises(AssertionError, match="ran"):
        gates.run_seed(ATLEAST, tmp_path / "other", 0, ())


def test_flags_at_the_end_of_the_command_are_given_to_every_run(tmp_path, monkeypatch):
    given = []
    monkeypatch.setitem(gates.GATES, "one", ATLEAST)
    monkeypatch.setattr(gates, "run_seed", lambda *args: given.append(args[3]) or figures(70))
    command = ["--gate=one", "--seeds=2", f"--workdir={tmp_path}", "--flags"]
    flags = ("--config.a.x=1", "--config.b.y=2")
    assert gates.main([*command, *flags]) == 0
    assert given == [flags, flags]


def test_runs_are_parallel_and_results_keep_their_order(tmp_path, monkeypatch):
    gate = Gate((), measures.returns, (), controls=("--config.a.x=1 --config.b.y=2",))
    monkeypatch.setitem(gates.GATES, "one", gate)
    meet = threading.Barrier(2, timeout=10)  # passed by pairs alone

    def run_seed(gate, workdir, seed, flags):
        meet.wait()
        assert workdir == tmp_path / "one" / ("x=1,y=2" if flags else "ours") / f"seed{seed}"
        return figures(10 * len(flags) + seed)

    monkeypatch.setattr(gates, "run_seed", run_seed)
    results = gates.run_gates(["one"], tmp_path, 2, True, (), 2)
    assert results == {
        "one": {"ours": [figures(0), figures(1)], "x=1,y=2": [figures(20), figures(21)]}
    }


def test_the_curves_show_all_seeds_and_the_reference_policies(tmp_path, monkeypatch):
    record = {"update": 1, "env_steps": 1.0, "eval/return": 3.0, "eval/random": 2.0}
    for seed in (0, 1):
        workdir = tmp_path / "ours" / f"seed{seed}"
        workdir.mkdir(parents=True)
        (workdir / writers.METRICS).write_text(json.dumps(record) + "\n")
    drawn = []
    monkeypatch.setattr(gates.compare, "compare", lambda *args: drawn.append(args))
    gates._draw(tmp_path, 3, {"ours": "ours"})
    picture, title = tmp_path / "curves.png", tmp_path.name
    runs = {"ours": [[record], [record]]}
    assert drawn == [(picture, runs, ["eval/return"], title, {"random": 2.0})]


def test_the_curves_of_a_gate_have_the_peers_that_its_page_names(tmp_path, monkeypatch):
    page = (ROOT / "docs/experiments/peers.md").read_text().splitlines()
    drawn = []
    monkeypatch.setattr(gates.compare, "compare", lambda *args: drawn.append(args[-1]))
    for name in ("cartpole", "feeder", "ppo_feeder"):
        run = tmp_path / name / "ours/seed0"
        run.mkdir(parents=True)
        record = {"update": 1, "env_steps": 1, "eval/return": 3.0, "eval/random": 2.0}
        (run / writers.METRICS).write_text(json.dumps(record) + "\n")
        gates._draw(tmp_path / name, 1, {"ours": "ours"})
        lines = drawn.pop()
        assert len(lines) > 2 and lines.pop("random") == 2.0
        for peer, value in lines.items():
            tool, after = peer.split(", ")
            rows = [row for row in page if tool.split()[0] in row and after in row]
            assert any(f"| {value:g}" in row for row in rows), peer


def trains_to(env_steps, workdir, commands):
    """A replacement of subprocess.run that records the command and writes a run of some steps."""

    def train(command, **kwargs):
        commands.append(command)
        settings = base.get_config()
        settings.run.steps = 10
        recorded.write(workdir, config.from_dict(settings))
        (workdir / "metrics.jsonl").write_text(
            json.dumps({"update": 1, "env_steps": env_steps}) + "\n"
        )

    return train


@pytest.fixture
def sampling(monkeypatch):
    """Sampled episodes that nobody plays."""
    monkeypatch.setattr(measures, "sampled", lambda workdir, num: {"return_sampled": num / 100})


def test_an_interrupted_run_may_be_resumed(tmp_path, monkeypatch, sampling):
    commands = []
    gate = Gate(gate_table.task("bandit", 10), lambda workdir: {"return": 1.0}, ())
    (tmp_path / "new").mkdir()
    (tmp_path / "old" / "checkpoints" / "100").mkdir(parents=True)
    for name in ("new", "old"):
        monkeypatch.setattr(gates.subprocess, "run", trains_to(10, tmp_path / name, commands))
        measured = gates.run_seed(gate, tmp_path / name, 3, ("--more=1",))
        assert (measured["return"], measured["return_sampled"]) == (1.0, gates.EPISODES / 100)
    for command in commands:
        assert command[:4] == [sys.executable, "-m", "dtc.commands", "train"]
        assert "--auto_resume" in command
    assert all("--seed=3" in command and "--more=1" in command for command in commands)


def test_a_run_that_was_stopped_early_has_no_result(tmp_path, monkeypatch, sampling):
    monkeypatch.setattr(gates.subprocess, "run", trains_to(9, tmp_path, []))
    gate = Gate(gate_table.task("bandit", 10), lambda workdir: {"return": 1.0}, ())
    with pytest.raises(SystemExit, match="stopped after 9 of 10 environment steps"):
        gates.run_seed(gate, tmp_path, 3, ())
    assert not (tmp_path / "result.json").exists()


def test_a_gate_that_does_not_exist_is_refused(capsys):
    assert gates.main(["--gate=cartpol"]) == 2
    assert "--gate=cartpol is not a gate. Use cartpole," in capsys.readouterr().err


def test_returns_are_the_last_evaluation(tmp_path):
    records = [
        {
            "update": i,
            "env_steps": 10 * i,
            "seconds": 60.0 * i,
            "eval/return": x,
            "eval/random": 2.0,
        }
        for i, x in enumerate([1.0, 9.0, 5.0])
    ]
    records.insert(2, {"update": 1, "env_steps": 15, "seconds": 90.0, "loss/trunk": 1.0})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    measured = measures.returns(tmp_path, reach=8)
    assert (measured["return"], measured["random"], measured["minutes"]) == (5.0, 2.0, 2.0)
    assert measured["steps_to_8"] == 10
    assert measures.returns(tmp_path, reach=10)["steps_to_10"] == float("inf")
    lowest = {-1: 1.0, 0: 5.0, 20: -float("inf")}  # the evaluation at step 0 is not after it
    for after, value in lowest.items():
        assert measures.returns(tmp_path, after=after)[f"lowest_after_{after}"] == value


def test_deepsea_counts_training_episodes_in_the_order_they_end(tmp_path, monkeypatch):
    won_TN = np.zeros((150, 2), bool)
    won_TN[40:, 0] = True
    won_TN[45:, 1] = True
    rows = SimpleNamespace(reward=won_TN.astype(float), last=np.ones((150, 2), bool))
    monkeypatch.setattr(measures, "rows_of", lambda workdir: rows)
    monkeypatch.setattr(measures, "returns", lambda workdir: {})
    measured = measures.deepsea(tmp_path)
    assert measured["episodes"] == 300 and measured["last_100"] == 1.0
    assert measured["first_success"] == 81  # episodes 1 to 80 end in the first 40 calls
    assert won_TN.ravel()[: int(measured["solved_after"])][-100:].mean() == 0.9


@pytest.mark.parametrize("has_trials", [True, False])
def test_television_counts_what_the_explorer_watches(tmp_path, monkeypatch, has_trials):
    cfg = config.from_dict(base.get_config())
    cfg = dataclasses.replace(cfg, env=dataclasses.replace(cfg.env, name="noisytv"))
    num = catalog.make("noisytv").spec.action.num_classes
    action = np.zeros((50, 4), int)
    action[40:, 0] = num - 2  # one environment of four watches white noise, at the end
    last, tried = np.zeros((50, 4), bool), np.zeros((50, 4), bool)
    last[45:, 1], tried[:, 2:] = True, True
    rows = SimpleNamespace(action=action, last=last, extras=tried if has_trials else None)
    monkeypatch.setattr(measures, "rows_of", lambda workdir: rows)
    monkeypatch.setattr(measures, "returns", lambda workdir: {})
    monkeypatch.setattr(measures.saved, "settings", lambda workdir: cfg)
    measured = measures.noisytv(tmp_path)
    counted = 15 if has_trials else 35
    assert measured["white_ratio"] == pytest.approx(10 / counted * num)
    assert measured["pseudo_ratio"] == 0.0


@pytest.mark.parametrize("name", GATES)
def test_the_flags_of_every_control_are_accepted(name):
    gate = GATES[name]
    for control in gate.controls:
        host_command.parse(["dtc train", *gate.flags, *control.split()])


def test_further_flags_have_runs_of_their_own(tmp_path, monkeypatch):
    paths = []
    monkeypatch.setattr(gates, "run_seed", lambda gate, path, *rest: paths.append(path) or {})
    for flags in ((), ("--config.replay.batch=16",), ("--config.replay.batch=8", "--steps=9")):
        gates.run_gates(["cartpole"], tmp_path, 1, False, flags, 1)
    folders = [path.relative_to(tmp_path / "cartpole").parts[0] for path in paths]
    assert folders == ["ours", "ours,batch=16", "ours,batch=8,steps=9"]


@pytest.mark.slow
def test_the_coverage_of_the_rooms_is_that_of_the_rows_and_of_a_walk_as_long(tmp_path, monkeypatch):
    position = np.stack(np.meshgrid(*2 * [np.linspace(-0.99, 0.99, 64)]), -1)
    everywhere = SimpleNamespace(obs={"position": position}, first=np.zeros((64, 8), bool))
    monkeypatch.setattr(measures, "rows_of", lambda workdir: everywhere)
    monkeypatch.setattr(measures, "returns", lambda workdir: {})
    measured = measures.rooms(tmp_path)
    assert measured["coverage"] == 1.0
    assert 1 / 256 < measured["random_coverage"] < 0.1
    assert measured["coverage_ratio"] == pytest.approx(1 / measured["random_coverage"])


@pytest.mark.slow
def test_a_random_walk_uses_the_whole_box():
    env = catalog.make("gymnax/Pendulum-v1")  # whose box is [-2, 2]
    used = []

    def step(key, state, action, params):
        jax.debug.callback(used.append, action)
        return env.step(key, state, action, params)

    measures.random_walk(env._replace(step=step), 40, 8)
    jax.effects_barrier()
    assert -2 <= np.min(used) < -1.9 and 1.9 < np.max(used) <= 2


def test_sampled_returns_are_those_of_the_policy_that_samples(tmp_path, monkeypatch):
    asked, used = [], []

    def block(size, kind):
        def play(root, learner, index, num):
            asked.append((kind, size, int(num), int(index)))
            return SimpleNamespace(returns=jnp.arange(size))

        return play

    carrier = SimpleNamespace(root=None, learner=None)
    run = SimpleNamespace(program=SimpleNamespace(block=block), carrier=carrier)
    cfg = config.from_dict(base.get_config())
    monkeypatch.setattr(measures.saved, "settings", lambda workdir: cfg)
    monkeypatch.setattr(measures.saved, "restore", lambda workdir, cfg, on: used.append(on) or run)
    assert measures.sampled(tmp_path, 5) == {"return_sampled": 2.0}
    assert asked == [("sampled", 5, 5, episodes.FIRST_EVALUATION)]
    assert used[0].devices.flatten().tolist() == jax.devices()[:1]  # of the eight of these tests


@pytest.mark.parametrize("name", gates.GATES)
def test_a_gate_names_an_environment_that_there_is(name):
    prefix = "--config.env.name="
    flags = [flag for flag in gates.GATES[name].flags if flag.startswith(prefix)]
    for flag in flags:
        assert names.full(flag.removeprefix(prefix)) == flag.removeprefix(prefix)
    assert flags or "--config=configs/" in gates.GATES[name].flags[0]


@pytest.mark.parametrize("task", ["cartpole", "pendulum"])
@pytest.mark.parametrize(("suffix", "factor"), [("milli", 1e-3), ("10k", 1e4)])
def test_gates_of_other_units_ask_for_the_same_policy(task, suffix, factor):
    plain, scaled = gates.GATES[task], gates.GATES[f"{task}_{suffix}"]
    [bar], returns = scaled.bars, plain.bars[0]
    assert bar.must == pytest.approx(factor * returns.must)
    assert bar.goal == pytest.approx(factor * returns.goal)
    assert scaled.flags[1:] == plain.flags[1:]
    _, _, base_name = plain.flags[0].partition("=")
    scale, name = names.factor_and_base(scaled.flags[0].partition("=scaled/")[2])
    assert (scale, name) == (factor, base_name)


def test_spearman_and_auroc_equal_their_definitions():
    x, y = RNG.normal(size=40), RNG.normal(size=30) + 1
    assert calibration.spearman(x, np.exp(x)) == pytest.approx(1.0)
    assert calibration.spearman(x, -x) == pytest.approx(-1.0)
    pairs = (y[None] > x[:, None]).mean()
    assert calibration.auroc(x, y) == pytest.approx(pairs)
    assert calibration.auroc(np.ones(5), np.ones(7)) == 0.5


def test_novelty_ranks_the_errors_of_tried_and_untried_steps():
    def score(u, e):
        return calibration.Scores(np.array([u]), -np.array([u]), np.array([e]))

    tried, untried = score([0.1, 0.4], [3.0, 5.0]), score([0.2, 0.5], [9.0, 7.0])
    measured = calibration.ranks(tried, untried)
    assert measured["spearman"] == pytest.approx(0.4)  # of 3, 9, 5 and 7 nats
    assert measured["spearman_std"] == pytest.approx(-0.4)
    assert measured["auroc"] == pytest.approx(3 / 4)
    assert measured["auroc_std"] == pytest.approx(1 / 4)
    assert (measured["error_tried"], measured["error_untried"]) == (4.0, 8.0)
    shown = {bar.figure for bar in gates.GATES["calibration"].bars}
    assert shown == {"spearman", "auroc", "fall", "view_kl", "open_loop"}
    assert {"spearman", "auroc"} <= set(measured)


@pytest.mark.slow
def test_the_calibration_s_programs_can_be_traced():
    program = program_on((1, 1), behaviour__mode="task")
    functions = calibration.make(program)
    shapes = program.shapes()
    filled = functions.fill.trace(shapes, jnp.int32(16)).out_info
    assert filled.replay.rows.shape == shapes.replay.rows.shape
    assert functions.learn.trace(shapes).out_info[1].shape == ()
    steps = program.machine.env.spec.max_steps
    *scores, foreseen = functions.score.trace(shapes).out_info
    walks = (calibration.HELD_OUT,)
    assert [x.shape for x in jax.tree.leaves(scores)] == 6 * [(steps, *walks)]
    assert foreseen.loss.shape == foreseen.kl.shape == (steps - 1, *walks)
    assert foreseen.view.shape == (steps, *walks, 7, 7)
    assert foreseen.dreamed.shape == (steps - foresight.AHEAD, *walks, 7, 7)


@pytest.mark.slow
def test_the_calibrations_replay_holds_walks_that_never_collect_and_nothing_else():
    program = program_on((1, 1), behaviour__mode="task")
    carrier = program.init(jnp.uint32(0))  # its prefill collects
    before, _ = ring.history(carrier.replay)
    filled = calibration.make(program).fill(carrier, jnp.int32(32)).replay
    rows, _ = ring.history(filled)
    assert calibration.COLLECT in np.asarray(before.action)
    assert filled.filled == 32
    assert set(np.asarray(rows.action).ravel().tolist()) == {0, 1, 2, 3}
