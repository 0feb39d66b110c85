"""What a record says of the environment steps of a call: returns, and how the policy acted."""

import math

import numpy as np

from dtc.training.acting import CollectInfo


def record(info: CollectInfo) -> dict[str, float]:
    """The metrics `collect/...` of sums over all environments and a call, on the host.

    `collect/action_entropy` is the entropy of how often each action was executed, as a share of the
    largest; `collect/swings` is the share of steps that repeat the action before the last, and not
    the last: 1 is a policy that goes to and fro. `collect/broken` counts calls that gave NaN or
    infinity.
    """
    metrics = {"collect/broken": float(info.broken)}
    if info.ended > 0:
        metrics["collect/return"] = float(info.ended_return / info.ended)
        metrics["collect/length"] = float(info.ended_length / info.ended)
    if info.actions is not None and info.swings is not None and info.env_steps > 0:
        metrics["collect/action_entropy"] = entropy_share(np.asarray(info.actions, np.float64))
        metrics["collect/swings"] = float(info.swings / info.env_steps)
    return metrics


def entropy_share(counts: np.ndarray) -> float:
    """Entropy of the frequencies [A] as a share of ln A."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum() / math.log(max(len(counts), 2)))
