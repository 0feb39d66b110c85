"""The estimate of a step's time: work of a traced program, cycles of a compiled one, messages."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from dtc.commands import aot, speed, speed_cycles, speed_here, speed_links, speed_report, speed_work
from dtc.commands.speed_band import bands
from dtc.commands.speed_cycles import Cost, Passes
from dtc.commands.speed_links import CHIPS, Path
from dtc.commands.speed_work import Loops, Message
from dtc.commands.timing import Timed, in_turns
from dtc.config import settings as config
from dtc.core import mesh
from dtc.host import command
from dtc.host.program import Program
from tests.abstract import abstract_mesh, machine_of, scaled, train_on
from tests.commands.test_fit_tpu import ROOT, SMALL
from tests.guests import config_of, registered
from tests.toys import TOYS

N = 8
SQUARE = jax.ShapeDtypeStruct((N, N), jnp.float32)
ONE = 2 * N**3  # FLOPs of a matmul of two squares
BYTES = 4 * N**2  # of a square


def matmuls(fn, *args, loops=Loops()):  # noqa: B008 (a tuple)
    """The number of matmuls of squares that `count` finds."""
    work = speed_work.count(jax.make_jaxpr(fn)(*args), loops)
    assert work.flops % ONE == 0
    return work.flops // ONE


def scanned(x, length=3):
    return lax.scan(lambda y, _: (y @ x, None), x, length=length)[0]


def test_a_scan_counts_as_often_as_it_is_long_also_within_another_one():
    assert matmuls(scanned, SQUARE) == 3
    assert matmuls(lambda x: lax.fori_loop(0, 5, lambda _, y: scanned(y), x), SQUARE) == 15


def test_a_while_counts_as_often_as_its_condition_says():
    def fn(x):
        return lax.while_loop(lambda c: c[0] < 9, lambda c: (c[0] + 1, c[1] @ x), (2, x))

    assert matmuls(fn, SQUARE) == 7


def test_loops_of_unknown_length_count_by_what_encloses_and_ends_them():
    def until(x):
        return lax.while_loop(lambda y: y.sum() < 1.0, lambda y: y @ y, x)

    def fn(x, n):
        def body(_, y):
            y = lax.fori_loop(0, n, lambda _, z: z @ x, y)  # chunks
            return until(y)  # rounds

        return lax.fori_loop(0, n, body, x)  # calls

    args = (SQUARE, jax.ShapeDtypeStruct((), jnp.int32))
    assert matmuls(fn, *args) == 2
    assert matmuls(fn, *args, loops=Loops(calls=2, chunks=5, rounds=3)) == 2 * (5 + 3)


def test_a_cond_counts_as_its_dearest_branch():
    def fn(x, n):
        return lax.cond(n > 0, lambda y: y @ y @ y, lambda y: y @ y, x)

    assert matmuls(fn, SQUARE, jax.ShapeDtypeStruct((), jnp.int32)) == 2


def test_functions_within_the_program_count_once_each():
    @jax.custom_vjp
    def own(x):
        return x @ x

    own.defvjp(lambda x: (x @ x, x), lambda x, g: (g @ x,))
    assert matmuls(lambda x: own(jax.jit(lambda y: y @ y)(x)), SQUARE) == 2
    # Forward, backward, and forward again where nothing is kept.
    kept = jax.grad(lambda x: jnp.sin(jnp.sin(x @ x) @ x).sum())
    again = jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x @ x) @ x).sum()))
    assert (matmuls(kept, SQUARE), matmuls(again, SQUARE)) == (6, 8)


def test_a_convolution_counts_its_kernel_for_each_output():
    image = jax.ShapeDtypeStruct((2, 10, 10, 3), jnp.float32)
    kernel = jax.ShapeDtypeStruct((4, 4, 3, 7), jnp.float32)

    def fn(x, k):
        return lax.conv_general_dilated(
            x, k, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    flops = speed_work.count(jax.make_jaxpr(fn)(image, kernel), Loops()).flops
    assert flops == 2 * (2 * 4 * 4 * 7) * (4 * 4 * 3)


def test_what_a_loop_does_not_change_is_read_once():
    def fn(x, w):
        cast = lax.scan(lambda y, _: (y @ (2.0 * w), None), x, length=10)
        return cast[0]

    work = speed_work.count(jax.make_jaxpr(fn)(SQUARE, SQUARE), Loops())
    assert work.num_bytes == (10 + 1 + 10) * BYTES  # carry, weight, result


def test_inside_a_shard_map_sizes_are_those_of_a_device():
    on = mesh.make_mesh(4, 2, jax.devices()[:8])

    def fn(x):
        return mesh.psum(mesh.gather(x @ x.T, "ensemble"), "data")

    mapped = mesh.sharded(fn, on, (P(("data", "ensemble")),), P("ensemble"))
    work = speed_work.count(jax.make_jaxpr(mapped)(jnp.ones((16, N))), Loops())
    assert work.flops == 2 * 2 * 2 * N
    assert work.messages == [
        Message("all-gather", ("ensemble",), 4 * 4 * 2, 1),
        Message("all-reduce", ("data",), 4 * 4 * 2, 1),
    ]


@pytest.mark.slow
def test_the_full_size_step_has_the_flops_counted_by_hand():
    counted = ["--config.run.collect_steps=2", "--config.precision.compute=bfloat16"]
    counted.append("--config.dream.plans=0")  # they are made only while nothing pays
    cfg = config.on_devices(command.parse(["dtc speed", "--config=v4_8", *counted]).cfg, 4)
    program = Program(cfg, mesh.make_mesh(4, 1, jax.devices()[:4]))
    found = {band.horizon: band for band in bands(program, CHIPS["v4"], None)}
    # Both policies of an update on 16,384 replayed states are 0.115e12 of them, recall 0.077e12,
    # rarity of these states, twice, and of dreams 0.122e12, what the prior expects 0.061e12,
    # the value of 2,048 places to begin at 0.015e12.
    assert found[8].flops == pytest.approx(4.850e12, rel=0.005)
    assert found[64].flops == pytest.approx(11.10e12, rel=0.005)
    assert found[8].counts["imagined_steps/s"] == 8 * 1024
    assert found[8].counts["replayed_steps/s"] == 256 * 64


@pytest.mark.slow
@pytest.mark.parametrize("guest", ("mix", "ppo", *TOYS))
def test_every_algorithm_has_an_estimate(guest):
    cfg = config_of(guest, (4, 2))
    with registered():
        program = Program(cfg, mesh.make_mesh(4, 2, jax.devices()[:8]))
        *_, band = bands(program, CHIPS["v4"], None)
    assert band.seconds[0] > 0
    assert "links" in band.least
    assert band.counts["updates/s"] == cfg.run.updates_per_collect


MODULE = """HloModule jit_train

%matmul (p: f32[8,8]) -> f32[8,8] {
  ROOT %convolution.1 = f32[8,8]{1,0} convolution(%p, %p), dim_labels=bf_io->bf
}

%bounded (p.1: (s32[])) -> pred[] {
  %constant.7 = s32[]{:T(128)} constant(64)
  %i = s32[]{:T(128)} get-tuple-element(%p.1), index=0
  ROOT %lt.1 = pred[]{:T(512)} compare(%i, %constant.7), direction=LT, metadata={op_name="a"}
}

%counted (p.2: (s32[], s32[])) -> pred[] {
  %i.2 = s32[]{:T(128)} get-tuple-element(%p.2), index=0
  %n.2 = s32[]{:T(128)} get-tuple-element(%p.2), index=1
  ROOT %lt.2 = pred[]{:T(512)} compare(%i.2, %n.2), direction=LT
}

%until (p.3: (pred[4])) -> pred[] {
  ROOT %or = pred[]{:T(512)} reduce(%p.3, %false), dimensions={0}, to_apply=%any
}

%inner (p.4: (s32[])) -> (s32[]) {
  %f.4 = f32[8,8]{1,0} fusion(%p.4), kind=kOutput, calls=%matmul, config={"estimated_cycles":"10"}
}

%rounds (p.5: (s32[])) -> (s32[]) {
  %add.5 = f32[8]{0} add(%p.5), op_name="jit(train)/while/body/vmap()/add" "estimated_cycles":"7"
}

%outer (p.6: (s32[])) -> (s32[]) {
  %w.6 = (s32[]) while(%p.6), condition=%bounded, body=%inner, metadata={op_name="gather"}
  %w.7 = (s32[]) while(%p.6), condition=%counted, body=%inner
  %w.8 = (s32[]) while(%p.6), condition=%until, body=%rounds
  %s.6 = (f32[1024]{0}, s32[1024]{0}) sort(%p.6, %p.6), dimensions={0}, to_apply=%less
}

ENTRY %main (p.9: (s32[])) -> (s32[]) {
  %copy.9 = f32[8]{0} copy(%p.9), backend_config={"estimated_cycles":"100"}
  ROOT %w.9 = (s32[]) while(%p.9), condition=%counted, body=%outer
}
"""


def test_cycles_of_a_module_count_by_the_loops_around_them():
    found = speed_cycles.costs(MODULE)
    assert Cost("layout", Passes(1), 100) in found
    assert Cost("matmul", Passes(64, calls=1), 10, "gather") in found
    assert Cost("matmul", Passes(1, calls=1, chunks=1), 10) in found
    assert Cost("element-wise", Passes(1, calls=1, rounds=1), 7, "vmap()/add") in found
    of_matmuls = [cost for cost in found if cost.kind == "matmul"]
    ((spent, dearest),) = speed_cycles.dearest(of_matmuls, Loops(chunks=65), 1)
    assert (spent, dearest.passes.chunks) == (65 * 10, 1)
    cycles = speed_cycles.by_kind(found, Loops(calls=3, chunks=2, rounds=5))
    sort = cycles.pop("sort")
    assert cycles == {"layout": 100, "matmul": 3 * (64 + 2) * 10, "element-wise": 3 * 5 * 7}
    assert sort == 3 * 55 * 2 * speed_cycles.SORT_OPERATIONS  # 10 stages, two operands of 1024


def test_a_sort_in_the_program_costs_what_it_costs_compiled():
    jaxpr = jax.make_jaxpr(lambda x: jnp.sort(x))(jnp.zeros(4096))
    (found,) = speed_work.count(jaxpr, Loops()).sorts
    assert found == speed_work.Sorting(4096, 4 * 4096, 1)
    cycles = speed_cycles.network_cycles(found.length, found.num_bytes // 4)
    assert cycles == speed_cycles.sort_cycles("f32[4096]{0:T(1024)}")


def fake_mesh(shape, extents):
    """A mesh of devices that have places in a slice, in the order of their places."""
    places = [SimpleNamespace(coords=c) for c in np.ndindex(*extents)]
    grid = np.asarray(places, object).reshape(shape)
    names = ("data", "ensemble")
    return SimpleNamespace(
        devices=grid, axis_names=names, shape=dict(zip(names, shape, strict=True))
    )


def test_an_axis_of_the_mesh_has_the_links_of_its_place_in_the_slice():
    v4, both = CHIPS["v4"], ("data", "ensemble")
    assert speed_links.path(fake_mesh((4, 1), (2, 2, 1)), ("data",), v4) == Path(4, 2, 2)
    torus = fake_mesh((32, 2), (4, 4, 4))
    assert speed_links.path(torus, both, v4) == Path(64, 6, 6)
    assert speed_links.path(torus, ("ensemble",), v4) == Path(2, 1, 1)
    assert speed_links.path(fake_mesh((16, 1), (4, 4)), both, CHIPS["v5e"]) == Path(16, 2, 6)
    assert speed_links.path(fake_mesh((1, 1), (1, 1, 1)), both, v4).size == 1


def test_a_message_takes_its_share_of_bytes_over_the_links_of_its_axis():
    v4, along = CHIPS["v4"], Path(4, 2, 2)
    gather = Message("all-gather", ("data",), 9_000_000, 1)
    reduce = gather._replace(kind="all-reduce")
    expected = 0.75 * 9e6 / (2 * 45e9) + 2e-6
    assert speed_links.seconds(gather, along, v4) == pytest.approx(expected)
    assert speed_links.seconds(reduce, along, v4) == pytest.approx(2 * expected)
    scatter = Message("reduce-scatter", ("data",), 9_000_000 // 4, 1)
    assert speed_links.seconds(scatter, along, v4) == pytest.approx(expected)
    on = fake_mesh((4, 1), (2, 2, 1))
    twice = [gather._replace(axes=("data", "ensemble"), times=2)]
    assert speed_links.all_seconds(twice, on, v4) == {"data": pytest.approx(2 * expected)}
    assert speed_links.all_seconds([gather._replace(axes=("ensemble",))], on, v4) == {}


@pytest.mark.slow
def test_a_chain_of_matmuls_takes_the_time_that_its_count_says():
    size, lengths = 384, (4, 40)
    square = jnp.full((size, size), 1.0 / size, jnp.float32)
    fn = jax.jit(speed_here.chain, static_argnums=2)
    timed = {str(n): Timed(lambda n=n: fn(square, square, n)) for n in lengths}
    short, long = (t["cpu"] for t in in_turns(timed, repeats=9).values())
    jaxpr = jax.make_jaxpr(speed_here.chain, static_argnums=2)
    works = [speed_work.count(jaxpr(square, square, n), Loops()).flops for n in lengths]
    assert works == [2 * size**3 * n for n in lengths]
    assert 0.5 < (long / short) / (works[1] / works[0]) < 2.0


@pytest.mark.slow
def test_the_step_takes_up_to_three_times_its_roofline_on_this_cpu(capsys):
    (first, *_) = speed_here.compare(config_of("ppo", env__num_envs=256, ppo__units=512))
    assert first["measured"] > 0 and first["milliseconds"][0] > 0
    least, spent = first["cpu"]
    assert 1.0 < spent / least < 3.0, "1.8 on 2026-11-24"
    assert "of CPU time" in capsys.readouterr().out


def test_splits_leave_out_axes_with_more_devices_than_members_twice():
    cfg = command.parse(["dtc speed", "--config=v4_32"]).cfg
    assert [(s.mesh.data, s.mesh.ensemble) for s in speed.splits(cfg)] == [
        (16, 1),
        (8, 2),
        (4, 4),
        (2, 8),
    ]


def device_program(shape, per_device=2):
    machine = machine_of(scaled("pg", shape, per_device))
    return aot.device_program(train_on(machine, abstract_mesh(*shape)))


@pytest.mark.slow
def test_devices_with_equal_shares_run_the_same_whatever_the_length_of_an_axis():
    reference = device_program((4, 1))
    assert len(reference) > 1000
    assert device_program((256, 1)) == reference
    assert device_program((4, 1), per_device=4) != reference


def test_a_loop_that_runs_longer_is_another_program_of_a_device():
    def traced(length):
        on = mesh.make_mesh(1, 1, jax.devices()[:1])
        fn = mesh.sharded(lambda x: scanned(x, length), on, (P(),), P())
        return aot.device_program(fn.trace(SQUARE).jaxpr.jaxpr)

    assert traced(3) == traced(3) != traced(4)


@pytest.mark.slow
@pytest.mark.tpu_aot
def test_a_slice_has_a_band_and_is_compiled_once(tmp_path):
    if not aot.has_libtpu():
        pytest.skip("libtpu is not installed; use pip install -e '.[tpu]'.")
    sizes = [f"--config.{name}={value}" for name, value in SMALL.items()]
    out = tmp_path / "figures.json"
    flags = ["--config=v4_16", "--config.mesh.ensemble=2", f"--json={out}"]
    flags += ["--config.replay.slots=2048"]
    env = os.environ | {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(tmp_path)}
    runs = []
    for _ in range(2):
        argv = [sys.executable, "tools/speed.py", *sizes, *flags]
        run = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
        assert run.returncode == 0, run.stderr[-2000:]
        runs.append((run.stdout, json.loads(out.read_text())))
    (first, figures), (second, again) = runs
    assert ("Compiling" in first, "Compiling" in second) == (True, False)
    assert figures == again
    short, *_, long = figures[0]["bands"]
    assert 0 < short["milliseconds"][0] < short["milliseconds"][1] < long["milliseconds"][1]
    assert {"matmul", "element-wise", "sort", "links of data", "links of ensemble"} < set(
        long["most"]
    )
    assert "An estimate, not a measurement." in first
    curve = ["--slices=v4-32", f"--png={tmp_path / 'curve.png'}"]
    argv = [sys.executable, "tools/speed.py", *sizes, *flags, *curve]
    run = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert "Compiled for v4-16, where each device runs the same" in run.stdout, run.stderr[-2000:]
    assert "Compiling" not in run.stdout


def a_result(mesh_shape, milliseconds, most):
    rates = {"updates/s": [1.0, 2.0], "env_steps/s": [4.0, 8.0]}
    band = {"milliseconds": milliseconds, "most": most, "rates": rates}
    num = mesh_shape[0] * mesh_shape[1]
    return {"config": "c", "where": f"v4-{2 * num}", "devices": num, "mesh": mesh_shape} | {
        "bands": [band]
    }


def test_the_best_split_is_the_fastest_at_the_end_that_was_found():
    found = [a_result([8, 1], [3.0, 9.0], {"x": 1}), a_result([4, 2], [4.0, 8.0], {"x": 1})]
    text = speed_report.best_split(found)
    assert "upper end" in text and text.endswith("Use --mesh=4,2")
    assert "lower end alone" in speed_report.best_split([a_result([8, 1], [3.0, 3.0], {})])


def test_scaling_compares_what_a_device_does(tmp_path):
    found = [a_result([4, 1], [1.0, 2.0], {"x": 1}), a_result([16, 1], [1.0, 2.0], {"x": 1})]
    text = speed_report.scaling(found, tmp_path / "curve.png", is_strong=True)
    assert "25.0% at the lower end, 25.0% at the upper end" in text
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_an_unknown_chip_is_refused_in_one_sentence(capsys):
    assert speed.main(["--config=h200", "--chip=h100"]) == 2
    assert capsys.readouterr().err.startswith("--chip=h100 is not known. Use --chip=v4 or v5e")
