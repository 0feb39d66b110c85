"""Starts a run with parameters of another one: `--init_from`."""

from fnmatch import fnmatch

import jax

from dtc.config.errors import ConfigError
from dtc.host import proof, verify
from dtc.host.command import Init
from dtc.host.program import Program
from dtc.training.carrier import Carrier


def with_parameters(carrier: Carrier, program: Program, init: Init) -> tuple[Carrier, int]:
    """The carrier with the chosen arrays of another run's newest checkpoint, and their number.

    Raises:
      ConfigError: no checkpoint can be read, a pattern matches nothing, or an array has another
        shape or dtype.
    """
    assert init.directory is not None
    portable = program.to_checkpoint(carrier)
    here = proof.describe(portable)
    for pattern in init.patterns:
        if not any(fnmatch(name, pattern) for name in here):
            tops = sorted({"/".join(name.split("/")[:3]) for name in here if "/params" in name})
            use = f"Use patterns such as {', '.join(tops)}/*."
            raise ConfigError(f"--init_groups={pattern} matches no array. {use}")
    names = {n for n in here if any(fnmatch(n, p) for p in init.patterns)}
    part = verify.newest(init.directory, names)
    if part is None:
        raise ConfigError(f"--init_from={init.directory} holds no readable checkpoint.")
    found, there = part.arrays, part.leaves
    for name in sorted(names):
        if there.get(name) != here[name]:
            raise ConfigError(
                f"--init_from={init.directory} has {name} {there.get(name)}, and this run "
                f"{here[name]}. Choose others with --init_groups, or the sizes of that run."
            )

    def place(path: tuple, x: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name not in found:
            return x
        value = found[name]
        return jax.make_array_from_callback(x.shape, x.sharding, lambda index: value[index])

    return program.from_checkpoint(jax.tree_util.tree_map_with_path(place, portable)), len(found)
