"""The compiled functions of a run on its mesh, and its carrier in the form of checkpoints."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dtc.algorithms.catalog import ALGORITHMS
from dtc.config.settings import Config
from dtc.core import mesh
from dtc.core.nets import Precision
from dtc.core.types import PyTree
from dtc.envs import catalog
from dtc.host.episodes import Stage
from dtc.host.feed import Feed
from dtc.training import evaluation, trainer
from dtc.training.algorithm import State
from dtc.training.carrier import Carrier, Machine, specs
from dtc.training.trainer import Train


def precision(cfg: Config, platform: str) -> Precision:
    """The dtypes of the program; `auto` is float32 on a CPU, where bfloat16 is no faster."""
    compute = cfg.precision.compute
    if compute == "auto":
        compute = "float32" if platform == "cpu" else "bfloat16"
    return Precision(jnp.dtype(compute), jnp.dtype(cfg.precision.param))


def make_machine(cfg: Config, dtypes: Precision) -> Machine:
    """The machine for checked settings, with its environment and algorithm."""
    if "float64" in (cfg.precision.compute, cfg.precision.param):
        jax.config.update("jax_enable_x64", True)
    env, make = catalog.make(cfg.env.name), ALGORITHMS[cfg.algorithm.name]
    algorithm = make(cfg, env.spec, dtypes)
    is_prefilled = algorithm.has_ring and cfg.run.collect_steps > 0
    return Machine(
        env=env,
        num_envs=cfg.env.num_envs,
        prefill=cfg.replay.prefill if is_prefilled else 0,
        collect_steps=cfg.run.collect_steps,
        updates_per_collect=cfg.run.updates_per_collect,
        slots=cfg.replay.slots,
        has_latents=cfg.replay.latents,
        algorithm=algorithm,
        latent_every=cfg.replay.latent_every,
    )


class Program:
    """Functions compiled at their first call; see dtc/training/trainer.py and evaluation.py."""

    def __init__(self, cfg: Config, on: Mesh | None = None):
        """`on` defaults to a mesh of all devices of this run."""
        self.cfg = cfg
        self.mesh = mesh.make_mesh(cfg.mesh.data, cfg.mesh.ensemble) if on is None else on
        self.precision = precision(cfg, self.mesh.devices.flat[0].platform)
        m = make_machine(cfg, self.precision)
        num = cfg.run.eval_episodes
        self.machine = m
        self.init = trainer.make_init(m, self.mesh)
        self.train = trainer.make_train(m, self.mesh)
        self.act = trainer.make_act(m, self.mesh)
        self.insert = trainer.make_insert(m, self.mesh)
        self.learn = trainer.make_learn(m, self.mesh)
        self.evaluate = evaluation.make_evaluate(m, self.mesh, num)
        self.watch = evaluation.make_watch(m, self.mesh)
        self.probes = m.algorithm.probes(m, self.mesh)
        kinds = ["random"] + ["scripted"] * (m.env.scripted is not None)
        self.references = {k: evaluation.make_reference(m, self.mesh, num, k) for k in kinds}
        self.feed = None if m.env.host is None else Feed(m, self.mesh, cfg.seed)
        if self.feed is not None:
            self._show(self.feed.stage, num)

    def _show(self, stage: Stage, num: int) -> None:
        """Has episodes played on the host where the program cannot step the environments."""
        self.evaluate = stage.shown(self.evaluate, "greedy", num)
        self.watch = stage.shown(self.watch, "greedy", 1)
        if "open_loop" in self.probes:
            self.probes["open_loop"] = stage.shown(self.probes["open_loop"], "greedy", 1)
        kinds = self.references.items()
        self.references = {kind: stage.reference(fn, kind, num) for kind, fn in kinds}

    def start(self, seed: int) -> Carrier:
        """The carrier before the first update, with the prefill in its ring."""
        carrier = self.init(jnp.uint32(seed))
        return carrier if self.feed is None else self.feed.start(carrier)

    def lower(self, carrier: Carrier | None = None) -> Callable[[], Train]:
        """Traces the train call; calling the result compiles it.

        Only where environments on the host make the rows of an update is the carrier needed.
        """
        if self.feed is not None:
            assert carrier is not None
            return self.feed.lower(carrier)
        return self.train.lower(self.shapes(), jnp.int32(0)).compile

    def block(self, size: int, kind: str) -> Any:
        """(root, learner, evaluation number, num) -> Block of `size` episodes of a policy."""
        play = evaluation.make_block(self.machine, self.mesh, size, kind)
        return play if self.feed is None else self.feed.stage.shown(play, kind, size)

    def shapes(self) -> Carrier:
        """ShapeDtypeStructs of the carrier, with shardings."""
        shapes = jax.eval_shape(self.init, jnp.uint32(0))

        def place(spec: P, tree: PyTree) -> PyTree:
            sharding = NamedSharding(self.mesh, spec)
            return jax.tree.map(lambda x: _shaped(x, sharding), tree)

        return jax.tree.map(place, specs(self.machine), shapes, is_leaf=lambda x: isinstance(x, P))

    def to_checkpoint(self, carrier: Carrier) -> Carrier:
        """The carrier in a form that does not depend on the mesh."""
        wanted = self.checkpoint_shapes()
        convert = jax.jit(self._portable, out_shardings=_shardings(_state(wanted)))
        return _with_state(carrier, convert(_state(carrier)))

    def from_checkpoint(self, carrier: Carrier) -> Carrier:
        """A restored carrier in the form that this mesh needs."""
        size = self.mesh.shape["ensemble"]
        convert = jax.jit(
            lambda state: self.machine.algorithm.from_checkpoint(state, size),
            out_shardings=_shardings(_state(self.shapes())),
        )
        here = _with_state(carrier, convert(_state(carrier)))
        if self.feed is not None:
            self.feed.restart(here)
        return here

    def checkpoint_shapes(self) -> Carrier:
        """Shapes and shardings of `to_checkpoint`'s result on this mesh.

        Leaves whose shape differs from the carrier's are replicated: the real members, whose number
        no mesh axis need divide.
        """
        shapes = self.shapes()
        here = _state(shapes)
        everywhere = NamedSharding(self.mesh, P())

        def place(portable: Any, own: Any) -> Any:
            is_same = portable.shape == own.shape
            return _shaped(portable, own.sharding if is_same else everywhere)

        portable = jax.tree.map(place, jax.eval_shape(self._portable, here), here)
        return _with_state(shapes, portable)

    def _portable(self, state: State) -> State:
        return self.machine.algorithm.to_checkpoint(state, self.mesh.shape["ensemble"])


def _shaped(x: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _shardings(shapes: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x.sharding, shapes)


def _state(carrier: Carrier) -> State:
    return State(carrier.learner, carrier.acting)


def _with_state(carrier: Carrier, state: State) -> Carrier:
    return carrier._replace(learner=state.learner, acting=state.acting)
