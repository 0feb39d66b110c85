"""The red lines: laws that every algorithm must satisfy.

Add a new algorithm to `GUESTS` in tests/guests.py and its purposes to `DRAWS` below.
"""

import json
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dtc.config import settings
from dtc.core.types import Purpose
from dtc.host import checkpoint, loop
from dtc.host.devices import Devices
from dtc.training import trainer
from tests import programs, red_lines
from tests.guests import (
    CURIOUS,
    GUESTS,
    config_of,
    demonstrations,
    fresh,
    program_of,
    registered,
    shared,
)
from tests.red_lines import MESHES
from tests.toys import TOYS

pytestmark = pytest.mark.redlines

HOME, AWAY = (4, 2), (1, 1)  # meshes: for most tests, and for restoring on another mesh
SINGLE = (2, 5)  # one member per device


def one(guest, *shape, is_wide=False):
    """The parameters of a test, slow for the curious agent, whose programs compile slowly."""
    is_slow = guest in CURIOUS or not {*shape} <= {HOME, SINGLE}
    marks = [pytest.mark.slow] * is_slow + [pytest.mark.wide] * is_wide
    return pytest.param(guest, *shape, marks=marks, id="-".join(map(str, (guest, *shape))))


def on_each_mesh(narrow):
    """Every algorithm on every mesh beside (1, 1); `narrow`: on which by default, by guest."""
    return pytest.mark.parametrize(
        ("guest", "shape"),
        [
            one(guest, shape, is_wide=shape not in narrow.get(guest, MESHES))
            for guest in GUESTS
            for shape in MESHES[1:]
        ],
    )


# `explore` has what `mix` has, and a task policy beside it; `task` splits the optimiser's state.
EACH = pytest.mark.parametrize("guest", [one(g, is_wide=g == "explore") for g in GUESTS])

ACTING = {Purpose.ENV_RESET, Purpose.ENV_STEP, Purpose.ACT_LATENT, Purpose.ACT_POLICY}
EVALUATING = {Purpose.EVAL_RESET, Purpose.EVAL_STEP, Purpose.EVAL_LATENT, Purpose.EVAL_POLICY}
DREAMING = {Purpose.OBSERVE, Purpose.RECALL, Purpose.DREAM_START, Purpose.DREAM}
NETWORKS = {Purpose.MODEL_INIT, Purpose.MEMBER_INIT, Purpose.BEHAVIOUR_INIT}
DRAWS = {  # what each algorithm draws, evaluation apart
    **dict.fromkeys(CURIOUS, ACTING | NETWORKS | DREAMING | {Purpose.REPLAY_SAMPLE}),
    "ppo": ACTING | {Purpose.BEHAVIOUR_INIT, Purpose.MINIBATCH},
    "pg": ACTING | {Purpose.BEHAVIOUR_INIT},
    "cloner": {Purpose.BEHAVIOUR_INIT, Purpose.REPLAY_SAMPLE},
    "overridden": ACTING | {Purpose.BEHAVIOUR_INIT, Purpose.REPLAY_SAMPLE},
    "members": ACTING | {Purpose.BEHAVIOUR_INIT, Purpose.MEMBER_INIT},
}


# Seeds of the first update, if not 0. With 0 the gradients of the explorer's actor differ by 4e-5
# between meshes, but by 3e-15 in float64: rounding.
SEEDS = {"explore": 1}


@cache
def gradients_fn(guest, shape):
    """jit: carrier -> raw gradients of its next update."""
    program = shared(guest, shape)
    return trainer.make_gradients(program.machine, program.mesh)


@cache
def first_gradients(guest, shape):
    """Raw gradients of the first update, on the host."""
    carrier = fresh(shared(guest, shape), seed=SEEDS.get(guest, 0))
    return jax.device_get(gradients_fn(guest, shape)(carrier))


def compiled(guest):
    """The compiled train call on the mesh HOME."""
    program = shared(guest, HOME)
    return program.train.lower(program.shapes(), red_lines.size_on(program, 1)).compile()


@on_each_mesh({"mix": (HOME, SINGLE), "explore": (), "task": (HOME,)})
def test_raw_gradients_are_the_same_on_every_mesh(guest, shape):
    reference = first_gradients(guest, MESHES[0])
    assert red_lines.gradient_faults(first_gradients(guest, shape), reference) == []


@cache
def whole_run(guest, shape, members=5):
    """What 50 updates leave."""
    changes = {} if members == 5 else {"ensemble__members": members}
    if guest in CURIOUS:  # nothing pays yet: the explorer's rate, too, would make rounding visible
        changes["optimizer__explore_lr"] = programs.STEADY["actor_lr"]
    is_double = guest == "explore"  # the counted rarity of a few rows amplifies rounding to 2e-5
    if is_double:
        changes |= {"precision__compute": "float64", "precision__param": "float64"}
    with jax.enable_x64(is_double):
        program = shared(guest, shape, **changes)
        # With seed 0 rounding flips a latent's sample.
        return red_lines.run_of(program, fresh(program, seed=1))


@on_each_mesh({"mix": (HOME,), "explore": (), "task": ()})
def test_fifty_updates_are_the_same_on_every_mesh(guest, shape):
    found, reference = whole_run(guest, shape), whole_run(guest, MESHES[0])
    assert red_lines.run_faults(found, reference) == []


@pytest.mark.wide
@pytest.mark.slow
@pytest.mark.parametrize("shape", MESHES[1:])
@pytest.mark.parametrize("members", [4, 8])
def test_each_number_of_members_trains_the_same_on_each_mesh(members, shape):
    found, reference = (whole_run("mix", mesh, members) for mesh in (shape, MESHES[0]))
    assert red_lines.run_faults(found, reference) == []


@EACH
def test_one_compile_serves_calls_of_every_length(guest):
    program = shared(guest, HOME)
    sizes = [red_lines.size_on(program, n) for n in (1, 3, 2)]
    assert red_lines.compile_faults(program.train, fresh(program), sizes) == []


@EACH
def test_training_makes_no_host_transfers(guest):
    assert red_lines.transfer_faults(compiled(guest)) == []
    program = shared(guest, HOME)
    carrier, size = fresh(program), red_lines.size_on(program, 2)
    carrier, _ = program.train(carrier, size)
    with jax.transfer_guard("disallow"):
        for _ in range(2):
            carrier, report = program.train(carrier, size)
    jax.block_until_ready(report)


@EACH
def test_the_whole_carrier_is_donated(guest):
    program = shared(guest, HOME)
    before = fresh(program)
    program.train(before, red_lines.size_on(program, 1))
    assert red_lines.donation_faults(before) == []
    assert red_lines.aliasing_faults(compiled(guest), program.shapes()) == []


def run_everything(program):
    """Runs the initialisation, two iterations, and an evaluation by each policy and probe."""
    carrier = fresh(program)
    carrier, _ = program.train(carrier, jnp.int32(2))
    root, learner = carrier.root, carrier.learner
    program.evaluate(root, learner, jnp.int32(1))
    for i, reference in enumerate(program.references.values()):
        reference(root, jnp.int32(2 + i))
    if "open_loop" in program.probes:
        program.probes["open_loop"](root, learner, jnp.int32(9))
    jax.effects_barrier()


@EACH
def test_each_draw_happens_once(guest):
    changes = {"run__eval_episodes": 2, "run__updates_per_collect": 1 if guest == "ppo" else 2}
    demonstrations(80)  # their walker's draws are not the algorithm's
    with red_lines.recorded_draws() as drawn:
        program = program_of(guest, **changes)
        run_everything(program)
    assert red_lines.draw_faults(drawn, DRAWS[guest] | EVALUATING) == []
    machine = program.machine
    acted = sum(purpose == Purpose.ACT_POLICY for purpose, _, _ in drawn)
    assert acted == machine.num_envs * (machine.prefill + 2 * machine.collect_steps)
    updates = {t for purpose, _, t in drawn if purpose == Purpose.REPLAY_SAMPLE}
    assert updates == (set(range(4)) if Purpose.REPLAY_SAMPLE in DRAWS[guest] else set())


@EACH
def test_no_key_is_consumed_twice_in_a_trace(guest):
    program = program_of(guest)
    shapes, number = program.shapes(), jnp.int32(1)
    with jax.debug_key_reuse(True):
        program.init.trace(jnp.uint32(0))
        program.train.trace(shapes, number)
        program.evaluate.trace(shapes.root, shapes.learner, number)
        if "open_loop" in program.probes:
            program.probes["open_loop"].trace(shapes.root, shapes.learner, number)


def parameters(learner):
    """The parameters that gradients update, on the host."""
    return jax.device_get(getattr(learner, "params", learner))


@EACH
def test_every_parameter_has_a_gradient_and_changes_within_three_updates(guest):
    program, gradients = shared(guest, HOME), gradients_fn(guest, HOME)
    carrier, largest = fresh(program), []
    before = parameters(carrier.learner)
    for _ in range(3):
        grads = jax.device_get(gradients(carrier))
        largest.append(jax.tree.map(lambda g: np.abs(g).max(), grads))
        carrier, _ = program.train(carrier, red_lines.size_on(program, 1))
    largest = jax.tree.map(max, *largest)
    after = parameters(carrier.learner)
    assert red_lines.still_faults(largest, before, after) == []


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A function of the guest, which trains for four updates on HOME and saves after two.

    It returns the checkpoint's directory, the gradients of the third update, and the carrier and
    report after the fourth.
    """

    @cache
    def save(guest):
        program, directory = shared(guest, HOME), tmp_path_factory.mktemp(guest)
        carrier, _ = program.train(fresh(program), red_lines.size_on(program, 2))
        checkpointer = checkpoint.Checkpointer(directory, program.cfg)
        checkpointer.save(2, program.to_checkpoint(carrier), {})
        checkpointer.close()
        gradients = jax.device_get(gradients_fn(guest, HOME)(carrier))
        carrier, report = program.train(carrier, red_lines.size_on(program, 2))
        return directory, gradients, program.to_checkpoint(carrier), jax.device_get(report)

    return save


def restored(program, directory):
    """A checkpoint's carrier on the program's mesh, in the form of checkpoints and of the mesh."""
    checkpointer = checkpoint.Checkpointer(directory, program.cfg)
    portable = checkpointer.restore_latest(program.checkpoint_shapes()).carrier
    checkpointer.close()
    return portable, program.from_checkpoint(portable)


@EACH
def test_a_resumed_run_continues_bit_for_bit(guest, saved):
    directory, _, expected, report = saved(guest)
    program = shared(guest, HOME)
    _, carrier = restored(program, directory)
    carrier, again = program.train(carrier, red_lines.size_on(program, 2))
    assert red_lines.state_faults(program.to_checkpoint(carrier), expected) == []
    assert red_lines.state_faults(again, report) == []


@EACH
def test_a_run_continues_with_the_same_state_on_another_mesh(guest, saved):
    directory, gradients, *_ = saved(guest)
    program = shared(guest, AWAY)
    portable, carrier = restored(program, directory)
    assert red_lines.state_faults(program.to_checkpoint(carrier), portable) == []
    here = jax.device_get(gradients_fn(guest, AWAY)(carrier))
    assert red_lines.part_faults(gradients, here) == []


@EACH
def test_the_collectives_of_an_update_are_those_of_the_golden_file(guest):
    found = red_lines.ledger(compiled(guest), shared(guest, HOME).mesh)
    faults = red_lines.golden_faults(guest, found)
    assert faults == [], red_lines.changed(f"a train call of {guest}")


@EACH
def test_evaluation_is_the_same_on_every_mesh(guest, saved):
    def evaluations(shape):
        program = shared(guest, shape)
        carrier = restored(program, saved(guest)[0])[1]
        own = program.evaluate(carrier.root, carrier.learner, jnp.int32(1))
        return jax.device_get((own, program.references["random"](carrier.root, jnp.int32(2))))

    (own, random), (own_away, random_away) = evaluations(HOME), evaluations(AWAY)
    assert own["length"] > 0
    for name in own:
        np.testing.assert_allclose(own_away[name], own[name], rtol=1e-4, atol=1e-6, err_msg=name)
    for name in random:  # the same episodes: their mean may round differently
        np.testing.assert_allclose(random_away[name], random[name], rtol=3e-7, err_msg=name)


@pytest.mark.parametrize(
    "guest", [pytest.param(t, marks=[pytest.mark.slow] * (t not in ("pg", "cloner"))) for t in TOYS]
)
def test_the_host_loop_trains_and_resumes_any_algorithm(guest, tmp_path):
    here = Devices(jax.device_count(), True, "Simulated devices.")

    def launch(updates, resume):
        changes = {"run__updates": updates, "run__log_every": 1, "run__checkpoint_every": 2}
        with registered():
            cfg = settings.on_devices(config_of(guest, (-1, 2), **changes), here.num)
            rows = [] if cfg.run.collect_steps or resume else demonstrations(cfg.env.num_envs)
            return loop.run(cfg, tmp_path, resume, here, ["dtc train"], rows)

    assert launch(3, resume=False) == 0
    assert json.loads((tmp_path / "config.json").read_text())["algorithm"]["name"] == guest
    assert launch(5, resume=True) == 0
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [r["update"] for r in records if "updates/s" in r] == [1, 2, 3, 4, 5]
    assert records[-1]["eval/return"] == 16  # the chain pays 1 a step
    assert (tmp_path / "checkpoints" / "5").is_dir()
    assert (tmp_path / "figures" / "learning_curve.png").stat().st_size > 10_000
