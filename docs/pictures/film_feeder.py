"""Films docs/pictures/feeder.gif: a greedy episode of a trained run, the whole grid from above.

python docs/pictures/film_feeder.py RUN_DIRECTORY
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from PIL import Image, ImageDraw

from dtc.envs import vector
from dtc.envs.feeder import NUM_KINDS, SIZE, VIEW, FeederState
from dtc.host import devices, saved
from dtc.host.command import Processes
from dtc.host.figures import style
from dtc.host.figures.style import INK
from dtc.training.acting import EVALUATE

CELL, FOOT = 16, 24  # pixels of a cell and of the line below the grid
FRAME, LAST_FRAME = 90, 2500  # ms
EMPTY = "#f4f1ea"
COLORS = [mpl.colors.to_hex(x) for x in (*style.CYCLE[:NUM_KINDS], EMPTY)]
INDEX = 1_000_001  # of the evaluation: an episode that training does not use
OUT = Path(__file__).with_name("feeder.gif")


def episode(workdir: Path) -> Iterator[tuple[FeederState, float]]:
    """States and returns so far, from the first state to the last."""
    cfg, _ = devices.start(saved.settings(workdir), 1, Processes())
    program, carrier, *_ = saved.restore(workdir, cfg)
    env, index = program.machine.env, jnp.int32(INDEX)
    shown = jax.device_get(program.probes["open_loop"](carrier.root, carrier.learner, index))
    calls = index * (env.spec.max_steps + 1)
    first, _ = vector.reset(carrier.root, jnp.zeros(1, jnp.int32), env, EVALUATE.vector, calls)
    state, ret = jax.tree.map(lambda x: x[0], first.env), 0.0
    yield state, ret
    step = jax.jit(env.step)
    for action in shown.rows.action[: int(shown.alive.sum())]:
        state, after = step(jax.random.key(0), state, action, env.params)  # it draws nothing
        ret += float(after.reward)
        yield state, ret


def picture(state: FeederState, ret: float, number: int) -> Image.Image:
    """The grid, the window that the agent sees, the agent, and the return."""
    side = SIZE * CELL
    image = Image.new("RGB", (side, side + FOOT), "white")
    pen = ImageDraw.Draw(image)
    kinds = np.minimum(np.asarray(state.grid), NUM_KINDS)
    for (row, column), kind in np.ndenumerate(kinds):
        corner = (column * CELL, row * CELL)
        pen.rectangle((*corner, corner[0] + CELL - 2, corner[1] + CELL - 2), COLORS[kind])
    row, column = map(int, state.position)
    low = [(x - VIEW // 2) * CELL - 1 for x in (column, row)]
    pen.rectangle((*low, low[0] + VIEW * CELL, low[1] + VIEW * CELL), outline=INK, width=2)
    x, y = column * CELL + CELL // 2 - 1, row * CELL + CELL // 2 - 1
    pen.ellipse((x - 5, y - 5, x + 5, y + 5), fill=INK, outline="white", width=2)
    pen.rectangle((0, side, side, side + FOOT), "white")
    pen.text((2, side + 6), f"step {number}    return {ret:.1f}", fill=INK)
    return image.quantize(32, dither=Image.Dither.NONE)


def main(workdir: Path) -> None:
    """Writes the film."""
    frames = [picture(*seen, number) for number, seen in enumerate(episode(workdir))]
    times = [FRAME] * (len(frames) - 1) + [LAST_FRAME]
    frames[0].save(
        OUT, save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=True
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
