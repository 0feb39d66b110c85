"""Policies: the rewards they maximise, and actions from their networks' output."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from dtc.config.sections import BehaviourConfig
from dtc.core import distributions as dist
from dtc.core.numerics import accum
from dtc.core.types import Array, EnvSpec, Key


@dataclass(frozen=True)
class Reward:
    """One kind of reward that a policy maximises."""

    name: str  # 'extrinsic' or 'intrinsic', also the name of its critic
    weight: float
    discount: float
    floor: float  # smallest return range that divides the advantage
    fades: bool = False  # beside a task: boredom lowers its weight, see targets.py


@dataclass(frozen=True)
class Policy:
    """An actor with its critics. The first policy of a run acts; the last, `task`, is evaluated."""

    name: str
    rewards: tuple[Reward, ...]
    entropy: float  # entropy weight where the task pays
    # Most that the entropy weighs while nothing pays, in units of mean |advantage|; 0: `entropy`
    seeking: float = 0.0
    is_relative: bool = False  # reward-free: novelty is divided by its running mean
    has_root: bool = False  # the reward is the root of relative novelty, see `drive.relative`

    @property
    def is_curious(self) -> bool:
        """Whether novelty is one of its rewards."""
        return any(reward.name == "intrinsic" for reward in self.rewards)


def policies(cfg: BehaviourConfig, is_discrete: bool) -> tuple[Policy, ...]:
    """The policies of `cfg.mode`, the acting one first.

    Entropy weighs less in a box: one small push changes the value of the next state little, much
    less than the returns of two dreams differ. Its weight there is the same for every policy.
    """
    factor = 1.0 if is_discrete else cfg.box_entropy
    entropy, exploring = factor * cfg.entropy, factor * cfg.explore_entropy
    extrinsic = Reward("extrinsic", 1.0, cfg.discount, cfg.extrinsic_floor)
    intrinsic = Reward(
        "intrinsic", cfg.intrinsic_weight, cfg.intrinsic_discount, cfg.intrinsic_floor, fades=True
    )
    if cfg.mode == "task":
        return (Policy("task", (extrinsic,), entropy),)
    if cfg.mode == "mix":
        seeking = cfg.mix_entropy if is_discrete else exploring
        return (Policy("task", (extrinsic, intrinsic), entropy, seeking),)
    alone = replace(intrinsic, weight=1.0, fades=False)  # a common factor would cancel
    explore = Policy("explore", (alone,), 0.0, exploring, is_relative=True, has_root=is_discrete)
    return (explore, Policy("task", (extrinsic,), entropy, exploring))


def sample_action(
    output: Array,
    mask: Array | None,
    keys_n: Key,
    spec: EnvSpec,
    unimix: float = dist.UNIMIX,
    squash: bool = True,
    noise: Array | None = None,
) -> Array:
    """Sampled actions, int32 [n] or float32 [n, A], with one key each.

    Args:
      noise: [n, A] standard normal numbers for the action of a box; None: drawn with the keys.
      squash: of a box, tanh(u) with u ~ N(mean, std^2), in [-1, 1]; else a ~ N(tanh(mean), std^2),
        which the machine clips (DreamerV3).
    """
    if spec.is_discrete:
        log_p = log_policy(output, mask, unimix)
        uniform = jax.vmap(lambda k: jax.random.uniform(k))(keys_n)
        return dist.sample_categorical(uniform, log_p).astype(jnp.int32)
    mean, std = gaussian(output)
    if noise is None:
        noise = jax.vmap(lambda k: jax.random.normal(k, mean.shape[-1:]))(keys_n)
    if squash:
        return dist.tanh_gaussian_sample(noise, mean, std)
    return jnp.tanh(mean) + std * noise


def greedy_action(output: Array, mask: Array | None, spec: EnvSpec) -> Array:
    """The policy's mode, int32 [n], or tanh of the Gaussian's mean, float32 [n, A]."""
    if spec.is_discrete:
        return jnp.argmax(log_policy(output, mask), -1).astype(jnp.int32)
    return jnp.tanh(gaussian(output)[0])


def log_policy(logits: Array, mask: Array | None, unimix: float = dist.UNIMIX) -> Array:
    """log p(a) [..., A] of the categorical policy, with `unimix` over the allowed actions."""
    return dist.masked_log_probs(logits, mask, unimix)


def gaussian(output: Array) -> tuple[Array, Array]:
    """(mean, std) of the Gaussian before the tanh, with std in [0.1, 1]."""
    mean, raw = jnp.split(accum(output), 2, -1)
    return mean, 0.1 + 0.9 * jax.nn.sigmoid(raw + 2.0)


def entropy_share(entropy: Array, mask: Array | None, spec: EnvSpec) -> Array | None:
    """[...] entropy in that of the uniform policy over what is allowed; None for a box.

    1 where a single action is allowed: there is nothing to settle on.
    """
    if spec.action.num_classes is None:
        return None
    num = jnp.asarray(spec.action.num_classes)
    if mask is not None:
        num = jnp.where(mask.any(-1), mask.sum(-1), num)
    most = jnp.log(jnp.maximum(accum(num), 1))
    return jnp.where(most > 0, entropy / jnp.where(most > 0, most, 1), 1)


def toward_entropy(
    weight: Array, share: Array, target: float, rate: float, bounds: tuple[float, float]
) -> Array:
    """[] the entropy's weight, raised where the entropy is below its target and lowered above.

    A step of dual gradient ascent on log weight (Haarnoja et al. 2018, arXiv:1812.05905, eq. 18):
    the weight is the price of the constraint that the entropy stays at the target.

    Args:
      share: [] `entropy_share`, over all devices.
      rate: step of log weight, an update and unit of `share`.
      bounds: least and largest weight.
    """
    return jnp.clip(weight * jnp.exp(rate * (target - share)), *bounds)


def kl(old: Array, new: Array, mask: Array | None, spec: EnvSpec, squash: bool = True) -> Array:
    """[...] KL(old || new) in nats, of two outputs of the actor; `squash` as in `sample_action`.

    The tanh of both policies leaves the divergence of the normals before it as it is.
    """
    if spec.is_discrete:
        return dist.categorical_kl(log_policy(old, mask), log_policy(new, mask))
    (mean, std), (new_mean, new_std) = gaussian(old), gaussian(new)
    if not squash:
        mean, new_mean = jnp.tanh(mean), jnp.tanh(new_mean)
    return dist.normal_kl(mean, std, new_mean, new_std)


def log_prob_and_entropy(
    output: Array,
    action: Array,
    mask: Array | None,
    spec: EnvSpec,
    unimix: float = dist.UNIMIX,
    squash: bool = True,
) -> tuple[Array, Array]:
    """(log p(a), entropy in nats), [...] each; `squash` as in `sample_action`."""
    if spec.is_discrete:
        log_p = log_policy(output, mask, unimix)
        return dist.categorical_log_prob(log_p, action), dist.categorical_entropy(log_p)
    mean, std = gaussian(output)
    if not squash:
        return dist.normal_log_prob(action, jnp.tanh(mean), std), dist.normal_entropy(std)
    return (
        dist.tanh_gaussian_log_prob(action, mean, std),
        dist.tanh_gaussian_entropy(action, mean, std),
    )
