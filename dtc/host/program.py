"""The compiled functions of a run on its mesh, and its carrier as checkpoints hold it."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dtc.algorithms.curious import agent
from dtc.algorithms.curious.agent import Agent
from dtc.config.settings import Config
from dtc.core import mesh
from dtc.core.nets import Precision
from dtc.core.types import PyTree
from dtc.envs import catalog
from dtc.training import evaluation, trainer
from dtc.training.trainer import Carrier
from dtc.world_model import ensemble

CONTEXT = 5  # steps of an episode the model sees before the dream figure leaves it alone


def precision(cfg: Config, platform: str) -> Precision:
    """The dtypes of the program; `auto` is float32 on a CPU, where bfloat16 is no faster."""
    compute = cfg.precision.compute
    if compute == "auto":
        compute = "float32" if platform == "cpu" else "bfloat16"
    return Precision(jnp.dtype(compute), jnp.dtype(cfg.precision.param))


def make_agent(cfg: Config, platform: str) -> Agent:
    """The agent of the settings in their environment."""
    if "float64" in (cfg.precision.compute, cfg.precision.param):
        jax.config.update("jax_enable_x64", True)
    return agent.make(cfg, catalog.make(cfg.env.name), precision(cfg, platform))


class Program:
    """Functions compiled at their first call; see dtc/trainer.py and dtc/evaluator.py."""

    def __init__(self, cfg: Config, on: Mesh | None = None):
        """Without `on` the mesh is made of the devices of this run."""
        self.mesh = mesh.make_mesh(cfg.mesh.data, cfg.mesh.ensemble) if on is None else on
        a = make_agent(cfg, self.mesh.devices.flat[0].platform)
        num = cfg.run.eval_episodes
        self.agent, self.num_members = a, cfg.ensemble.members
        self.init = trainer.make_init(a, self.mesh)
        self.train = trainer.make_train(a, self.mesh)
        self.evaluate = evaluation.make_evaluate(a, self.mesh, num)
        self.dream = evaluation.make_dream(a, self.mesh, CONTEXT)
        self.novelty = evaluation.make_novelty(a, self.mesh)
        self.member_distance = jax.jit(
            partial(ensemble.distance, num_members=self.num_members),
            out_shardings=NamedSharding(self.mesh, mesh.REPLICATED),
        )
        kinds = ["random"] + ["scripted"] * (a.env.scripted is not None)
        self.references = {k: evaluation.make_reference(a, self.mesh, num, k) for k in kinds}

    def shapes(self) -> Carrier:
        """ShapeDtypeStructs of the carrier, with shardings."""
        shapes = jax.eval_shape(self.init, jnp.uint32(0))
        return self._place(shapes, trainer.specs(self.agent))

    def _place(self, shapes: PyTree, specs: PyTree) -> PyTree:
        """Shapes with the shardings of prefix specs."""

        def one(spec: P, tree: PyTree) -> PyTree:
            sharding = NamedSharding(self.mesh, spec)
            return jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree
            )

        return jax.tree.map(one, specs, shapes, is_leaf=lambda x: isinstance(x, P))

    def to_checkpoint(self, carrier: Carrier) -> Carrier:
        """The carrier with its real members alone: a checkpoint knows nothing of the mesh."""
        everywhere = NamedSharding(self.mesh, mesh.REPLICATED)
        strip = jax.jit(
            lambda tree: jax.tree.map(lambda x: x[: self.num_members], tree),
            out_shardings=everywhere,
        )
        return _with_members(carrier, strip(_members(carrier)))

    def checkpoint_shapes(self) -> Carrier:
        """Shapes and shardings of `to_checkpoint`'s result on this mesh."""
        shapes = self.shapes()
        real = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((self.num_members, *x.shape[1:]), x.dtype),
            _members(shapes),
        )
        return _with_members(shapes, self._place(real, jax.tree.map(lambda _: P(), real)))

    def from_checkpoint(self, carrier: Carrier) -> Carrier:
        """A restored carrier with ghost members, whose values nothing reads, added as zeros."""
        wanted = _members(self.shapes())
        num_padded = mesh.padded_members(self.num_members, self.mesh.shape["ensemble"])

        def pad(x: Any) -> Any:
            return jnp.pad(x, [(0, num_padded - x.shape[0])] + [(0, 0)] * (x.ndim - 1))

        fill = jax.jit(
            lambda tree: jax.tree.map(pad, tree),
            out_shardings=jax.tree.map(lambda x: x.sharding, wanted),
        )
        return _with_members(carrier, fill(_members(carrier)))


def _members(carrier: Carrier) -> tuple[PyTree, PyTree]:
    return carrier.params.members, carrier.opt.members


def _with_members(carrier: Carrier, members: tuple[PyTree, PyTree]) -> Carrier:
    return carrier._replace(
        params=carrier.params._replace(members=members[0]),
        opt=carrier.opt._replace(members=members[1]),
    )
