"""What the machine can do with an environment; the rest is refused with what to change."""

import jax
import jax.numpy as jnp
import numpy as np

from dtc.config.errors import ConfigError
from dtc.core.types import ArraySpec, Environment, EnvSpec

RANKS = (1, 2, 3)  # of encoded leaves: vectors, categories [G, C], grids [height, width, channels]


def check(name: str, env: Environment) -> Environment:
    """`env`, if its spec is one that algorithms can read.

    Raises:
      ConfigError: the action, a bound or an encoded observation has a form that none can.
    """
    spec = env.spec
    wrong = _of_action(spec) or _of_bounds(spec) or _of_encoding(spec)
    if wrong:
        raise ConfigError(f"env.name={name}: {wrong}")
    return env


def _of_action(spec: EnvSpec) -> str:
    """What is wrong with the action; '': nothing."""
    action = spec.action
    if action.num_classes is None and len(action.shape) != 1:
        return (
            f"action has shape {list(action.shape)} (a box of actions is a vector). Use "
            "ArraySpec((n,), jnp.float32, low, high), or num_classes=n for one of n, and reshape "
            "in step."
        )
    if action.num_classes is not None and action.shape:
        return (
            f"action has num_classes and shape {list(action.shape)} (one choice is a number). Use "
            "shape () and num_classes=the product, and take it apart in step."
        )
    return ""


def _of_bounds(spec: EnvSpec) -> str:
    """What is wrong with a bound that has several numbers; '': nothing."""
    for leaf, array in {"action": spec.action, **spec.obs}.items():
        for end, bound in (("low", array.low), ("high", array.high)):
            if isinstance(bound, tuple) and np.shape(bound) != array.shape:
                return (
                    f"{leaf} has shape {list(array.shape)}, and its bound {end} has shape "
                    f"{list(np.shape(bound))}. Use one number for all, or one for each."
                )
    return ""


def _of_encoding(spec: EnvSpec) -> str:
    """What is wrong with what `encode` gives; '': nothing."""
    stored = {k: jax.ShapeDtypeStruct(x.shape, x.dtype) for k, x in spec.obs.items()}
    encoded = jax.eval_shape(spec.encode, stored)
    for leaf, x in encoded.items():
        told = f"encode gives {leaf} as {x.dtype.name}{list(x.shape)}"
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return f"{told} (networks read floats). Use .astype(jnp.float32)."
        if len(x.shape) not in RANKS:
            return (
                f"{told} (leaves have 1 to 3 dims: a vector, categories [G, C], a grid [height, "
                "width, channels]). Reshape it, a single number to [1]."
            )
        if leaf not in spec.planes and _is_image(x, spec.obs.get(leaf)):
            return (
                f"{told}, as it is stored (a grid is one-hot unless spec.planes names it). Add "
                f"planes=({leaf!r},) with features in [0, 1], bytes divided by 255, or encode "
                "classes with jax.nn.one_hot."
            )
    unknown = [leaf for leaf in spec.planes if leaf not in encoded]
    if unknown:
        return f"planes names {unknown[0]}, which encode does not give. Use {', '.join(encoded)}."
    return ""


def _is_image(x: jax.ShapeDtypeStruct, stored: ArraySpec | None) -> bool:
    """Whether an encoded leaf of three dims is a stored one of numbers, not of flags or classes."""
    if len(x.shape) != 3 or stored is None or stored.dtype == jnp.bool_:
        return False
    return stored.shape == x.shape and stored.num_classes is None
