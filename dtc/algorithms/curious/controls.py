"""Controls: alternative intrinsic rewards, for comparison with the members' disagreement."""

import math

import jax
import jax.numpy as jnp

from dtc.core import distributions as dist
from dtc.core.keys import mesh_key
from dtc.core.numerics import accum
from dtc.core.types import Array, Purpose
from dtc.curiosity.novelty import JSD, Novelty
from dtc.world_model import ensemble
from dtc.world_model.ensemble import Member, Transitions


def probability_and_square(log_p: Array, reference: Array | None) -> tuple[Array, Array]:
    """The members' probabilities and their squares, [E, n, S, C] each."""
    prob = jnp.exp(log_p)
    return prob, jnp.square(prob)


def seed_novelty(sums: tuple[Array, Array], num_members: int) -> Array:
    """[n] the source document's Var(means) - Mean(variances), averaged over S and C; may be < 0.

    Both terms have the unit of a variance (the document's vars^2 is std^2). Since the means are
    predicted rather than sampled, the first term does not contain the noise that is subtracted.
    """
    mean, square = (accum(x) / num_members for x in sums)
    return (square - jnp.square(mean) - (mean - square)).mean((-2, -1))


def random_network(member: Member, data: Transitions) -> Array:
    """log p [n, S, C] of all given transitions by a fixed random network."""
    with jax.ensure_compile_time_eval():  # its parameters are constants of the program
        key = mesh_key(jax.random.key(0), Purpose.RANDOM_TARGET, 0, 0)
        num_actions = data.action.shape[-1]
        params = jax.jit(lambda k: ensemble.init_one(k, member, num_actions))(key)
        alone = jax.tree.map(lambda x: x[None], params)
    return jax.lax.stop_gradient(ensemble.predict(member, alone, data)[0])


def distance_to_reference(log_p: Array, reference: Array | None) -> Array:
    """KL(reference || p_k) of each member, [E, n, S]."""
    assert reference is not None
    return dist.categorical_kl(reference[None], log_p)


def error_code(error: Array, groups: int, classes: int) -> Array:
    """[..., S, C] log-probabilities that encode an error, as targets of the members.

    In every group the first class has probability e / (1 + e) and the second the rest, where
    e = error / (S ln C). `expected_error` decodes the members' predictions.

    Args:
      error: [...] nats; S ln C is the entropy of a uniform code.
    """
    e = accum(error) / (groups * math.log(classes))
    p = jnp.stack([e, jnp.ones_like(e)], -1) / (1 + e)[..., None]
    rest = jnp.zeros((*e.shape, classes - 2), e.dtype)
    log_p = jnp.log(jnp.maximum(jnp.concatenate([p, rest], -1), 1e-6))
    return jnp.broadcast_to(log_p[..., None, :], (*e.shape, groups, classes))


def error_targets(log_post: Array, terms: dict[str, Array]) -> Array:
    """Members' targets: the model's error (KL of its prior plus reconstruction losses), encoded.

    Args:
      log_post: [..., S, C], read for its shape.
      terms: the trunk's loss terms [...].
    """
    wrong = [term for name, term in terms.items() if name == "dyn" or name.startswith("obs/")]
    return error_code(jnp.stack(wrong).sum(0), *log_post.shape[-2:])


def expected_error(sum_p: Array, num_members: int) -> Array:
    """[...] the error e that members trained on `error_code` predict on average.

    Prediction error as a reward (Pathak et al. 2017): noise never stops paying it. Dreams contain
    no observations to compare with, so the error itself is predicted.

    Args:
      sum_p: [..., S, C] sum over the members of their probabilities.
    """
    p = jnp.mean(accum(sum_p)[..., 0], -1) / num_members
    return p / (1 - p)


# Pathak et al. 2017: prediction error; Burda et al. 2019: random network distillation.
NOVELTIES = {
    "jsd": JSD,
    "progress": JSD._replace(is_progress=True),
    "seed": Novelty(probability_and_square, seed_novelty),
    "error": JSD._replace(
        value=lambda sums, num: expected_error(sums[0], num), targets=error_targets
    ),
    "rnd": Novelty(
        distance_to_reference,
        lambda sums, num: sums.mean(-1) / num,
        reference=random_network,
    ),
}
