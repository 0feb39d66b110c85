"""Programs of the smoke config, for tests of the train step and of the host."""

from functools import cache

import jax
from dtc.configs import smoke

from dtc.config import settings as config
from dtc.core import mesh
from dtc.host.program import Program

# At the agent's own rates rounding grows within a few updates to what tests can see.
STEADY = dict.fromkeys(("model_lr", "member_lr", "actor_lr", "critic_lr"), 3e-4)


def smoke_config(mesh_shape=(1, 1), **changes):
    """The smoke config on a mesh, with changes such as replay__slots=32."""
    settings = smoke.get_config()
    settings.optimizer.update(STEADY)
    settings.mesh.data, settings.mesh.ensemble = mesh_shape
    for name, value in changes.items():
        section, field = name.split("__")
        settings[section][field] = value
    return config.from_dict(settings)


@cache
def program_on(mesh_shape, **changes):
    """A Program on the first devices of this machine, shared by all tests that ask for the same.

    A test that patches parts of a Program needs a separate one: `program_on.__wrapped__`.
    """
    devices = jax.devices()[: mesh_shape[0] * mesh_shape[1]]
    return Program(smoke_config(mesh_shape, **changes), mesh.make_mesh(*mesh_shape, devices))
