"""The totals of a run, which the host counts in Python integers."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Totals:
    """Totals of the run so far, saved with each checkpoint."""

    update: int = 0
    env_steps: int = 0
    seconds: float = 0.0  # training time, including that before a resume
    evaluations: int = 0
    baselines: dict[str, float] = field(default_factory=dict)  # returns of reference policies
    last_eval: dict[str, float] = field(default_factory=dict)
    rollbacks: int = 0  # times that the run went back to a checkpoint

    def counts(self, update: int) -> dict[str, Any]:
        """The beginning of a record at this update, which calls in flight may be ahead of."""
        return {"update": update, "env_steps": self.env_steps, "seconds": self.seconds}
