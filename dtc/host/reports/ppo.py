"""The report of PPO: warnings and figures."""

from collections.abc import Sequence
from functools import partial

import jax

from dtc.host.figures.clip import Clip
from dtc.host.health import settled, swings
from dtc.host.program import Program
from dtc.host.progress import Shown
from dtc.host.reports.report import Drawing, Report
from dtc.training.carrier import Carrier

# Without reward the default weight of the entropy keeps it above 0.9, and none lets it fall to 0.6
# within 500k steps (tests/host/test_ppo_report.py).
ENTROPY = 0.7  # least entropy of a policy that earns nothing, in that of the uniform one
WARMUP = 5  # updates, of thousands of rows each, before which a policy may look settled

SHOWN = (
    Shown("loss/policy", ".2g"),
    Shown("loss/value", ".3g"),
    Shown("task/entropy", ".3f"),
    Shown("ppo/kl", ".2g"),
    Shown("ppo/explained", ".2f"),
)


def make(program: Program) -> Report:
    """The report of a program whose algorithm is PPO."""
    return Report(
        shown=SHOWN,
        signs={
            "entropy": partial(settled, setting="ppo.entropy", least=ENTROPY),
            "swings": partial(swings, setting="ppo.entropy"),
        },
        warmup=WARMUP,
        film=film_of_episode,
        draw=draw,
    )


def film_of_episode(program: Program, carrier: Carrier, index: jax.Array) -> Clip:
    """What was seen in a greedy episode."""
    watched = jax.device_get(program.watch(carrier.root, carrier.learner, index))
    return Clip(watched.seen, watched.alive, watched.reward)


def draw(program: Program, drawing: Drawing) -> Sequence[str]:
    """Curves of the losses and of how far the policy moves."""
    from dtc.host.figures import curves  # imports matplotlib

    curves.policy(drawing.directory / "policy.png", drawing.records, drawing.title)
    return []
