"""Checks before a run begins: memory, rows to learn from, the lock of the directory."""

from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from dtc.config.settings import Config, ConfigError
from dtc.core.types import Row
from dtc.host import devices, proof
from dtc.host.devices import Devices
from dtc.host.program import Program


def check_memory(cfg: Config, program: Program, here: Devices) -> None:
    """Refuses a simulation whose carrier and estimated temporaries do not fit into memory."""
    if not here.is_simulated:
        return
    shapes = program.shapes()
    shardings = jax.tree.map(lambda x: x.sharding, shapes)
    carrier = devices.carrier_bytes(shapes, shardings)
    ring = devices.carrier_bytes(shapes.replay, shardings.replay)  # 0 without a ring
    devices.check_memory(cfg, carrier + 2 * (carrier - ring), ring)


def check_rows(program: Program, num_rows: int) -> None:
    """Refuses a run that collects nothing and has too few rows, `num_rows` of each environment."""
    cfg, window = program.cfg, program.cfg.replay.length + 1
    if cfg.run.collect_steps or (program.machine.layout is not None and num_rows >= window):
        return
    has = f"is given {num_rows} rows of each environment, below replay.length + 1 = {window}"
    if program.machine.layout is None:
        has = "stores no rows that it could learn from instead"
    raise ConfigError(
        f"run.collect_steps=0 collects nothing, and algorithm.name={cfg.algorithm.name} {has}. "
        "Use --config.run.collect_steps=2."
    )


def check_finite(rows: Row) -> None:
    """Refuses rows with NaN or infinity, which no update could learn from."""
    for name, x in proof.leaves_of(rows).items():
        if np.issubdtype(np.asarray(x).dtype, np.floating) and not np.isfinite(x).all():
            raise ConfigError(f"rows: {name} holds NaN or infinity (rows must be finite). Mend it.")


def on_first_process(take: Callable[[], None]) -> None:
    """Runs `take` on process 0; all processes raise if it refuses."""
    problem = ""
    if jax.process_index() == 0:
        try:
            take()
        except ConfigError as error:
            problem = str(error)
    refused = bool(problem)
    if jax.process_count() > 1:
        refused = bool(multihost_utils.broadcast_one_to_all(np.array(refused)))
    if refused:
        raise ConfigError(problem or "Process 0 cannot take the run directory.")
