"""Every setting, declared once: type, default, range, unit and a line of help.

A section is a frozen dataclass. It does not check itself: `settings.from_dict` checks what a person
typed against what is declared here.
"""

from dataclasses import dataclass
from typing import NamedTuple

from dtc.config.fields import BELOW_ONE, COUNT, NATURAL, POSITIVE, RATE, SHARE, Range, setting


class Size(NamedTuple):
    """A size preset: the fields of `model` that are None come from it."""

    deter: int
    groups: int
    classes: int
    hidden: int
    units: int
    depth: int


SIZES = {
    "nano": Size(128, 16, 16, 64, 128, 16),
    "1m": Size(512, 32, 4, 64, 64, 4),
    "12m": Size(2048, 32, 16, 256, 256, 16),
    "25m": Size(3072, 32, 24, 384, 384, 24),
    "50m": Size(4096, 32, 32, 512, 512, 32),
    "100m": Size(6144, 32, 48, 768, 768, 48),
    "200m": Size(8192, 32, 64, 1024, 1024, 64),
    "400m": Size(12288, 32, 96, 1536, 1536, 96),
}


@dataclass(frozen=True)
class MeshConfig:
    """Shape of the mesh; -1 stands for the rest of the devices."""

    data: int = setting(-1, Range(-1), unit="devices", help="share environments, replay and batch")
    ensemble: int = setting(1, Range(-1), unit="devices", help="the members are split over these")


@dataclass(frozen=True)
class PrecisionConfig:
    """Number formats."""

    compute: str = setting(
        "auto",
        choices=("auto", "bfloat16", "float32", "float64"),
        help="of matmuls and activations; auto: bfloat16 on TPU and GPU",
    )
    param: str = setting(
        "float32",
        choices=("float32", "float64"),
        help="of parameters, optimiser state and statistics",
    )


@dataclass(frozen=True)
class EnvConfig:
    """What the agent acts in."""

    name: str = setting("feeder_ego", help="as in the catalog, e.g. deepsea/20, gymnax/CartPole-v1")
    num_envs: int = setting(64, COUNT, help="N, environments over the whole mesh")


@dataclass(frozen=True)
class ReplayConfig:
    """Size of the ring and of what an update reads from it."""

    slots: int = setting(4096, Range(2), unit="rows", help="M, of each environment")
    batch: int = setting(16, Range(2), help="B, sequences of an update, over the whole mesh")
    length: int = setting(
        32, Range(2), unit="rows", help="T, of a sequence (one more is read before them as context)"
    )
    frontier: int = setting(
        1024,
        COUNT,
        unit="rows",
        help="F, newest ones the frontier half samples from; >= slots: all of them",
    )
    latents: bool = setting(True, help="second ring with the acting-time latents")


@dataclass(frozen=True)
class RSSMConfig:
    """Sizes and loss scales of the trunk; each member's core and prior have the same sizes."""

    size: str = setting("nano", choices=SIZES, help="preset of the six fields that are None")
    deter: int = setting(None, COUNT, help="D, width of the deterministic state")
    groups: int = setting(None, COUNT, help="S, categorical latents")
    classes: int = setting(None, Range(2, 256), help="C, of each latent; ids are uint8")
    hidden: int = setting(None, COUNT, help="width inside core, prior and posterior")
    units: int = setting(None, COUNT, help="width of encoder, decoder, heads, actor and critics")
    depth: int = setting(None, COUNT, unit="channels", help="of the grid convolution")
    blocks: int = setting(8, COUNT, help="diagonal blocks of the GRU")
    encoder_layers: int = setting(3, COUNT, help="hidden layers of the encoder")
    decoder_layers: int = setting(3, COUNT, help="hidden layers of the decoder")
    prior_layers: int = setting(2, COUNT, help="hidden layers of the prior")
    posterior_layers: int = setting(1, COUNT, help="hidden layers of the posterior")
    head_layers: int = setting(1, COUNT, help="of the reward, continue and mask heads")
    unimix: float = setting(
        0.01, BELOW_ONE, help="share of the uniform distribution in every categorical"
    )
    code_gradient: str = setting(
        "straight_through",
        choices=("straight_through", "reinmax"),
        help="through the draw of z",
    )
    dyn_free_nats: float = setting(1.0, NATURAL, unit="nats", help="a KL below trains no prior")
    rep_free_nats: float = setting(1.0, NATURAL, unit="nats", help="a KL below trains no posterior")
    dyn_scale: float = setting(1.0, NATURAL, help="weight of the KL that trains the prior")
    rep_scale: float = setting(0.1, NATURAL, help="weight of the KL that trains the posterior")
    value_scale: float = setting(0.3, NATURAL, help="weight of the replay-value loss")
    value_grad: bool = setting(True, help="the replay-value loss shapes the trunk")
    standardise: bool = setting(
        True, help="vector observations, by running moments; DreamerV3 does not"
    )
    bins: int = setting(255, Range(3), help="of the two-hot distributions, odd")

    def __post_init__(self) -> None:
        """Fills the sizes that are None from the preset."""
        for name, value in SIZES[self.size]._asdict().items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)


@dataclass(frozen=True)
class EnsembleConfig:
    """The world-model members."""

    members: int = setting(5, NATURAL, help="K; ghosts pad them where the mesh needs more")
    data_share: float = setting(
        1.0, RATE, help="share of the sequences each member learns from, drawn anew an update"
    )


@dataclass(frozen=True)
class CuriosityConfig:
    """What counts as new, and how fast it becomes boring."""

    novelty: str = setting(
        "jsd",
        choices=("jsd", "anova", "seed", "error", "rnd"),
        help="what curiosity is paid for; all but jsd are controls",
    )
    fast_rate: float = setting(0.1, RATE, unit="per update", help="EMA rate of C_fast")
    slow_rate: float = setting(0.005, RATE, unit="per update", help="EMA rate of C_slow")
    threshold: float = setting(
        0.05, NATURAL, unit="C_slow", help="competence or surprise below this is boring"
    )
    warmup: int = setting(200, NATURAL, unit="updates", help="first ones, boredom frozen")
    boredom_up: float = setting(1 / 2000, SHARE, unit="per update", help="while bored")
    boredom_down: float = setting(1 / 200, SHARE, unit="per update", help="while learning")
    hysteresis: float = setting(
        0.05, BELOW_ONE, help="boredom beyond an edge at which the horizon changes"
    )


@dataclass(frozen=True)
class DreamConfig:
    """Size of the dreams of one update."""

    starts: int = setting(128, COUNT, help="posterior states dreamed from, over the whole mesh")
    horizons: tuple[int, ...] = setting(
        (8, 16, 32), COUNT, unit="steps", help="buckets, ascending, multiples of chunk"
    )
    chunk: int = setting(8, COUNT, unit="steps", help="computed together")
    end: float = setting(
        0.8, BELOW_ONE, help="a state that continues with a smaller chance ends its dream"
    )

    @property
    def longest(self) -> int:
        """Steps the buffers hold."""
        return self.horizons[-1]


@dataclass(frozen=True)
class BehaviourConfig:
    """Actor-critic settings."""

    mode: str = setting(
        "mix",
        choices=("task", "explore", "mix"),
        help="task | explore (reward-free, a task actor learns on the side) | mix",
    )
    layers: int = setting(3, COUNT, help="hidden layers of actor and critics")
    pool_units: int = setting(64, NATURAL, help="P, width of a salience token; 0: no pooling")
    discount: float = setting(1 - 1 / 333, BELOW_ONE, unit="per step", help="extrinsic returns")
    intrinsic_discount: float = setting(
        1 - 1 / 333, BELOW_ONE, unit="per step", help="intrinsic returns"
    )
    lam: float = setting(0.95, SHARE, help="lambda of the lambda-returns")
    entropy: float = setting(3e-4, NATURAL, help="weight of a policy's entropy, nats")
    explore_entropy: float = setting(
        0.6, NATURAL, help="of the reward-free one's, in units of its mean |advantage|"
    )
    entropy_rate: float = setting(0.05, RATE, unit="per update", help="EMA rate of that mean")
    unimix: float = setting(
        0.01, BELOW_ONE, help="share of the uniform distribution in a categorical policy"
    )
    extrinsic_weight: float = setting(1.0, NATURAL, help="w_e, of the task's advantage")
    intrinsic_weight: float = setting(0.1, NATURAL, help="w_i, of curiosity's advantage (mix)")
    extrinsic_floor: float = setting(1.0, POSITIVE, help="least divisor of extrinsic advantage")
    intrinsic_floor: float = setting(0.01, POSITIVE, help="least divisor of intrinsic advantage")
    return_rate: float = setting(
        0.01, RATE, unit="per update", help="EMA rate of the return percentiles"
    )
    percentiles: tuple[float, float] = setting(
        (5.0, 95.0), Range(0, 100), unit="%", help="of the returns whose range scales advantages"
    )
    slow_rate: float = setting(0.02, RATE, unit="per update", help="EMA rate of the slow critics")
    slow_scale: float = setting(1.0, NATURAL, help="weight of the slow-critic regulariser")
    average_rate: float = setting(
        0.1, RATE, unit="per update", help="EMA rate of the parameters that are evaluated"
    )


@dataclass(frozen=True)
class OptimizerConfig:
    """Settings of the optimisers; the learning rates are at full warm-up."""

    model_lr: float = setting(3e-4, POSITIVE, help="learning rate of the trunk")
    member_lr: float = setting(3e-4, POSITIVE, help="learning rate of the transition members")
    actor_lr: float = setting(3e-4, POSITIVE, help="learning rate of the actor")
    explore_lr: float = setting(
        3e-4,
        POSITIVE,
        help="of the reward-free actor: what is new to it changes as it learns",
    )
    critic_lr: float = setting(3e-4, POSITIVE, help="learning rate of critics and salience")
    warmup: int = setting(
        100, NATURAL, unit="updates", help="linear warm-up of trunk and members, 0: none"
    )
    behaviour_warmup: int = setting(
        1000, NATURAL, unit="updates", help="the same of actors and critics: longer, see BUILD.md"
    )
    model_decay: int = setting(
        0,
        NATURAL,
        unit="updates",
        help="after them the trunk's rate falls as 1/sqrt(update), 0: never",
    )
    agc: float = setting(
        0.3, POSITIVE, help="largest gradient norm of a tensor, in norms of that tensor"
    )
    agc_floor: float = setting(
        1e-3, POSITIVE, help="least norm a tensor is taken to have: tensors that start at 0 learn"
    )
    beta1: float = setting(0.9, BELOW_ONE, help="decay of the mean of the scaled gradients")
    beta2: float = setting(0.999, BELOW_ONE, help="decay of the mean of the squared gradients")
    eps: float = setting(
        1e-20,
        POSITIVE,
        help="added to the mean square, so gradients below its root are not scaled up",
    )


@dataclass(frozen=True)
class RunConfig:
    """Length and intervals of a run."""

    steps: int = setting(300_000, COUNT, unit="environment steps", help="length of the run")
    updates: int = setting(0, NATURAL, help="> 0: stop after this many updates instead")
    prefill: int = setting(
        64, COUNT, unit="rows", help="of each environment, collected before the first update"
    )
    collect_steps: int = setting(2, COUNT, help="R, calls of each environment an iteration")
    updates_per_collect: int = setting(1, COUNT, help="G, updates an iteration")
    log_every: int = setting(50, COUNT, unit="updates", help="between log lines")
    eval_every: int = setting(1000, COUNT, unit="updates", help="between evaluations")
    checkpoint_every: int = setting(2000, COUNT, unit="updates", help="between checkpoints")
    eval_episodes: int = setting(32, COUNT, unit="episodes", help="of an evaluation")
    profile: tuple[int, int] = setting(
        (0, 0),
        NATURAL,
        unit="updates",
        help="first and last one of a profiler trace; 0,0: none",
    )
