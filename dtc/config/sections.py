"""The declaration of every setting: type, default, range, unit and a line of help.

A section is a frozen dataclass. It does not check itself: `settings.from_dict` checks values
against these declarations.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from dtc.config.fields import BELOW_ONE, COUNT, NATURAL, POSITIVE, RATE, SHARE, Range, setting


class Size(NamedTuple):
    """A size preset: it fills the fields of `model` that are None."""

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


# The sections that each algorithm reads. Every run reads the sections that are not listed here.
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "curious": ("replay", "model", "ensemble", "curiosity", "dream", "behaviour", "optimizer"),
    "ppo": ("ppo",),
}


@dataclass(frozen=True)
class AlgorithmConfig:
    """The learning algorithm. Changing a setting that it does not read is an error."""

    name: str = setting("curious", choices=ALGORITHMS, help="the learning algorithm")


@dataclass(frozen=True)
class MeshConfig:
    """Shape of the device mesh; -1 stands for all remaining devices."""

    data: int = setting(
        -1, Range(-1), unit="devices", help="size of the axis `data`, which replicates the members"
    )
    ensemble: int = setting(
        1, Range(-1), unit="devices", help="size of the axis `ensemble`, which splits the members"
    )


@dataclass(frozen=True)
class PrecisionConfig:
    """Number formats."""

    compute: str = setting(
        "auto",
        choices=("auto", "bfloat16", "float32", "float64"),
        help="number format of matmuls and activations; auto: bfloat16 on TPU and GPU",
    )
    param: str = setting(
        "float32",
        choices=("float32", "float64"),
        help="number format of parameters, optimiser state and statistics",
    )


@dataclass(frozen=True)
class EnvConfig:
    """The environment."""

    name: str = setting("feeder_ego", help="name in the catalog: deepsea/20, gymnax/CartPole-v1")
    num_envs: int = setting(64, COUNT, help="N, number of environments on the whole mesh")


@dataclass(frozen=True)
class ReplayConfig:
    """Size of the replay ring and of the batch that an update samples from it."""

    slots: int = setting(4096, Range(2), unit="rows", help="M, rows stored for each environment")
    batch: int = setting(16, Range(2), help="B, sequences per update on the whole mesh")
    length: int = setting(
        32, Range(2), unit="rows", help="T, rows of a sequence; the row before them is its context"
    )
    frontier: int = setting(
        1024, COUNT, unit="rows", help="F, half is sampled from the newest F rows; >= slots: all"
    )
    candidates: int = setting(
        8, COUNT, help="starts of which the one of most unusual value is replayed; 1: any start"
    )
    prefill: int = setting(64, COUNT, unit="rows", help="rows of each environment before learning")
    latents: bool = setting(True, help="store the latent of each row, as context of sequences")
    latent_every: int = setting(
        1, COUNT, unit="rows", help="store that of every n-th row only, where sequences then start"
    )


@dataclass(frozen=True)
class RSSMConfig:
    """Sizes of the trunk and of the members, and how the trunk learns."""

    size: str = setting(
        "nano",
        choices=SIZES,
        help="preset for those of deter, groups, classes, hidden, units, depth that are not given",
    )
    deter: int = setting(None, COUNT, help="D, width of the deterministic state")
    groups: int = setting(None, COUNT, help="S, number of categorical latent groups")
    classes: int = setting(None, Range(2, 256), help="C, classes of each group (ids are uint8)")
    hidden: int = setting(None, COUNT, help="hidden width of core, prior and posterior")
    units: int = setting(None, COUNT, help="width of encoder, decoder, heads, actor and critics")
    depth: int = setting(None, COUNT, unit="channels", help="channels of the grid convolution")
    cell_units: int = setting(
        0, NATURAL, help="recurrent units of each cell of an observed grid; 0: grids are flattened"
    )
    blocks: int = setting(8, COUNT, help="blocks of the block-diagonal GRU")
    encoder_layers: int = setting(3, COUNT, help="hidden layers of the encoder")
    decoder_layers: int = setting(3, COUNT, help="hidden layers of the decoder")
    prior_layers: int = setting(2, COUNT, help="hidden layers of the prior")
    memory: float = setting(
        100.0,
        NATURAL,
        unit="steps",
        help="longest memory of recurrent units at first, the shortest is 2; 0: 4 of all units",
    )
    recall: float = setting(
        1.0, NATURAL, help="weight of the loss of earlier observations, told by h; 0: none"
    )
    reward_scale: float = setting(
        30.0, POSITIVE, help="weight of the losses of reward and end in the trunk's (DreamerV3: 1)"
    )
    vector_scale: float = setting(
        10.0, POSITIVE, help="weight of the loss of a vector observation (DreamerV3: 1)"
    )
    dyn_free_nats: float = setting(
        0.0, NATURAL, unit="nats", help="free nats of the dynamics KL: no gradient below this value"
    )
    focal: float = setting(
        5.0, NATURAL, help="largest extra weight of an unexpected row in the dynamics loss; 0: none"
    )
    standardise: bool = setting(
        True, help="standardise vector observations by running moments (DreamerV3: false)"
    )
    bins: int = setting(255, Range(3), help="odd number of bins of the two-hot distributions")
    small_bins: bool = setting(
        True, help="two-hot heads expect small numbers at first (DreamerV3: false, all bins alike)"
    )
    code_scale: float = setting(
        4.0, POSITIVE, help="initial scale of the posterior's logits (DreamerV3: 1)"
    )

    def __post_init__(self) -> None:
        """Fills the sizes that are None from the preset."""
        for name, value in SIZES[self.size]._asdict().items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)


@dataclass(frozen=True)
class EnsembleConfig:
    """The ensemble of transition members."""

    members: int = setting(
        5, NATURAL, help="K, real members; ghosts pad them to a multiple of mesh.ensemble"
    )


@dataclass(frozen=True)
class CuriosityConfig:
    """The novelty measure, and the dynamics of competence and boredom."""

    novelty: str = setting(
        "jsd",
        choices=("jsd", "progress", "seed", "error", "rnd"),
        help="intrinsic reward; all but jsd and progress are experimental controls",
    )
    rarity: bool = setting(
        True, help="multiply novelty in dreams by how rarely states like one were replayed"
    )
    fast_rate: float = setting(0.1, RATE, unit="per update", help="rate of C_fast, of novelty")
    slow_rate: float = setting(0.01, RATE, unit="per update", help="rate of C_slow, of novelty")
    threshold: float = setting(
        0.1, NATURAL, help="smallest competence or surprise that counts, at the peak of novelty"
    )
    novel_share: float = setting(
        0.1, SHARE, help="boredom falls while more than this share of the new data is novel"
    )
    warmup: int = setting(
        200, NATURAL, unit="updates", help="boredom stays constant for this many initial updates"
    )
    boredom_up: float = setting(
        1 / 1000,
        SHARE,
        unit="per update",
        help="increase of boredom while novelty neither falls nor rises and little is novel",
    )
    boredom_down: float = setting(
        1 / 200, SHARE, unit="per update", help="decrease of boredom otherwise"
    )


@dataclass(frozen=True)
class DreamConfig:
    """Number and length of the dreams of one update."""

    starts: int = setting(128, COUNT, help="dreams per update and policy on the whole mesh")
    horizons: tuple[int, ...] = setting(
        (8, 16, 32),
        COUNT,
        unit="steps",
        help="possible dream lengths, ascending multiples of dream.chunk",
    )
    chunk: int = setting(8, COUNT, unit="steps", help="dreamed steps computed together")
    plans: int = setting(8, NATURAL, help="dreams that an action is chosen from; 0: no plans")

    @property
    def longest(self) -> int:
        """Length of the dream buffers, in steps."""
        return self.horizons[-1]


@dataclass(frozen=True)
class BehaviourConfig:
    """Actors and critics: networks, objectives and returns."""

    mode: str = setting(
        "mix",
        choices=("task", "explore", "mix"),
        help="objective of the acting policy; explore also trains a task actor on the side",
    )
    layers: int = setting(3, COUNT, help="hidden layers of actor and critics")
    pool_units: int = setting(64, NATURAL, help="P, width of a salience token; 0: no pooling")
    discount: float = setting(0.99, BELOW_ONE, unit="per step", help="discounts extrinsic returns")
    intrinsic_discount: float = setting(
        0.99, BELOW_ONE, unit="per step", help="discounts intrinsic returns"
    )
    lam: float = setting(0.95, SHARE, help="lambda of the lambda-returns")
    entropy: float = setting(3e-3, NATURAL, help="entropy weight of a policy whose task pays")
    box_entropy: float = setting(
        0.04, NATURAL, help="factor of entropy weights for continuous actions (DreamerV3: 1)"
    )
    mix_entropy: float = setting(
        0.8, NATURAL, help="entropy weight in mix while nothing pays, in units of mean |advantage|"
    )
    explore_entropy: float = setting(0.3, NATURAL, help="the same in explore, and of boxes in mix")
    intrinsic_weight: float = setting(
        0.3, NATURAL, help="weight of the intrinsic advantage in mode mix (extrinsic: 1)"
    )
    extrinsic_floor: float = setting(0.3, POSITIVE, help="smallest divisor of task advantages")
    intrinsic_floor: float = setting(
        0.1, POSITIVE, help="smallest divisor of the intrinsic advantage, beside a task that pays"
    )
    slow_rate: float = setting(0.1, RATE, unit="per update", help="EMA rate of the slow critics")
    reward_unit: bool = setting(
        True, help="rewards are in units of the RMS of positive ones (DreamerV3: false)"
    )
    centre: bool = setting(
        True, help="the mean over all dreams is subtracted from advantages (DreamerV3: false)"
    )
    count_ended: bool = setting(
        False, help="ranges of returns include steps after a dream's end (DreamerV3: true)"
    )
    lift: bool = setting(True, help="rare good actions keep their gradient (DreamerV3: false)")
    actor: str = setting(
        "tanh",
        choices=("tanh", "normal"),
        help="continuous policy: tanh of a normal, or a normal around tanh, clipped (DreamerV3)",
    )


@dataclass(frozen=True)
class OptimizerConfig:
    """Learning rates after warm-up, and their schedules.

    The rates are those of networks up to `rate_units` wide; see `at_width`.
    """

    model_lr: float = setting(8e-3, POSITIVE, help="learning rate of the trunk")
    member_lr: float = setting(1e-3, POSITIVE, help="learning rate of the transition members")
    actor_lr: float = setting(
        3e-4, POSITIVE, help="learning rate of an actor whose task pays at least a unit"
    )
    explore_lr: float = setting(
        3e-3,
        POSITIVE,
        help="learning rate of an actor while nothing pays: its target, novelty, keeps moving",
    )
    actor_kl: float = setting(
        0.01,
        NATURAL,
        unit="nats",
        help="an actor's step is shortened where its policy would change by more; 0: never",
    )
    critic_lr: float = setting(2e-3, POSITIVE, help="learning rate of critics and salience pooling")
    rate_units: int = setting(
        128,
        NATURAL,
        help="rates are multiplied by rate_units / model.units where that is below 1; 0: never",
    )
    warmup: int = setting(
        100, NATURAL, unit="updates", help="linear warm-up of trunk and members; 0: none"
    )
    behaviour_warmup: int = setting(
        300, NATURAL, unit="updates", help="linear warm-up of actors and critics"
    )
    model_decay: int = setting(
        250,
        NATURAL,
        unit="updates",
        help="the trunk's learning rate falls as 1/sqrt(update) after this many; 0: never",
    )
    update_clip: float = setting(2.0, NATURAL, help="largest RMS of a scaled gradient; 0: no limit")
    split: bool = setting(
        False, help="devices along the mesh axis `data` keep a slice of the state each, not all"
    )

    def at_width(self, units: int) -> "OptimizerConfig":
        """The rates for networks of `units`: inversely proportional to the width beyond rate_units.

        An update moves every weight by about the rate, so a layer's output moves by the rate times
        the number of its inputs (Yang et al. 2022, arXiv:2203.03466, table 8: Adam, hidden layers).
        """
        share = min(1.0, self.rate_units / units) if self.rate_units else 1.0
        rates = ("model_lr", "member_lr", "actor_lr", "explore_lr", "critic_lr")
        return replace(self, **{name: share * getattr(self, name) for name in rates})


@dataclass(frozen=True)
class PPOConfig:
    """Proximal policy optimisation: networks, losses and rates."""

    layers: int = setting(2, COUNT, help="hidden layers of actor and critic each")
    units: int = setting(256, COUNT, help="width of a hidden layer")
    lr: float = setting(2.5e-4, POSITIVE, help="learning rate of Adam at the start")
    decay: bool = setting(True, help="the rate falls linearly to 0 over the run")
    max_grad_norm: float = setting(0.5, POSITIVE, help="gradients of a larger norm are scaled down")
    discount: float = setting(0.99, SHARE, unit="per step", help="discount of returns")
    lam: float = setting(0.95, SHARE, help="lambda of the generalised advantage estimate")
    epochs: int = setting(4, COUNT, help="passes over the collected rows, an update")
    minibatches: int = setting(4, COUNT, help="gradient steps of a pass; divides run.collect_steps")
    clip: float = setting(
        0.2, POSITIVE, help="largest change of an action's probability ratio, and of a value"
    )
    value_weight: float = setting(0.5, NATURAL, help="weight of the value loss")
    entropy: float = setting(0.1, NATURAL, help="weight of the policy's entropy")
    entropy_target: float = setting(
        0.0,
        BELOW_ONE,
        help="share of the largest entropy that the weight is moved to keep; 0: fixed weight",
    )
    kl_limit: float = setting(
        0.0, NATURAL, unit="nats", help="a pass that ends above this KL is the last; 0: no limit"
    )


@dataclass(frozen=True)
class RunConfig:
    """Length of a run and intervals within it."""

    steps: int = setting(300_000, COUNT, unit="environment steps", help="length of the run")
    updates: int = setting(0, NATURAL, help="length of the run in updates; 0: use run.steps")
    collect_steps: int = setting(
        2, NATURAL, help="R, steps of each environment per iteration; 0: rows are supplied"
    )
    updates_per_collect: int = setting(1, COUNT, help="G, updates per iteration")
    log_every: int = setting(50, COUNT, unit="updates", help="updates between log lines")
    eval_every: int = setting(1000, COUNT, unit="updates", help="updates between evaluations")
    checkpoint_every: int = setting(2000, COUNT, unit="updates", help="updates between checkpoints")
    checkpoint_minutes: float = setting(
        5.0,
        NATURAL,
        unit="minutes",
        help="training time between checkpoints; 0: updates alone decide",
    )
    patience: float = setting(
        1800.0,
        NATURAL,
        unit="seconds",
        help="a step, evaluation or save that takes longer ends the run, status 124; 0: none does",
    )
    eval_episodes: int = setting(32, COUNT, unit="episodes", help="episodes per evaluation")
    profile: tuple[int, int] = setting(
        (0, 0),
        NATURAL,
        unit="updates",
        help="first and last update of a profiler trace; 0,0: none",
    )
