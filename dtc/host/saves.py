"""When a run saves a checkpoint, and what it says where a save fails."""

import dataclasses
from collections.abc import Callable

import jax

from dtc.host.checkpoint import Checkpointer
from dtc.host.program import Program
from dtc.host.signals import UNSAVED
from dtc.host.totals import Totals
from dtc.training.carrier import Carrier

PATIENCE = 10.0  # seconds that training waits for the save before
FIRST = 60.0  # seconds of training before the first checkpoint


class Saves:
    """The saves of a run; all processes make the same calls."""

    def __init__(self, checkpointer: Checkpointer, program: Program, log: Callable[[str], None]):
        self.checkpointer, self.program, self.log = checkpointer, program, log
        self.run = program.cfg.run
        self.next = FIRST  # seconds of training at which a save is due by the clock

    def begin_at(self, seconds: float) -> None:
        """Counts from a resume."""
        self.next = seconds + FIRST

    def is_due(self, seconds: float) -> bool:
        """Whether it is time for a checkpoint, whatever the number of updates."""
        return self.run.checkpoint_minutes > 0 and seconds >= self.next

    def begins(self, update: int, seconds: float, is_last: bool) -> bool:
        """Whether to save now: not where the disk is slower than the intervals."""
        self.next = seconds + max(60.0 * self.run.checkpoint_minutes, 1.0)
        if jax.process_count() > 1 or is_last:
            return True  # `save` waits
        self.checkpointer.wait(PATIENCE)
        is_busy = self.checkpointer.is_saving()
        if is_busy:
            self.log(
                f"Checkpoint {update} is left out: the one before is still being written. Raise "
                "run.checkpoint_every and run.checkpoint_minutes."
            )
        return not is_busy

    def save(self, carrier: Carrier, totals: Totals) -> None:
        """Starts a save."""
        saved = self.program.to_checkpoint(carrier)
        self.checkpointer.save(totals.update, saved, dataclasses.asdict(totals))

    def tell(self) -> None:
        """Tells that a save has failed, once for each."""
        if problem := self.checkpointer.check():
            newest = next(iter(self.checkpointer.steps()), None)
            stands = "There is none yet" if newest is None else f"Checkpoint {newest} stands"
            self.log(f"{problem} {stands}; the next interval tries again.")

    def close(self, carrier: Carrier, totals: Totals) -> int:
        """Saves what is not saved yet, and waits; the exit status."""
        self.checkpointer.wait()
        self.tell()
        update = totals.update
        if update != self.checkpointer.latest:
            self.save(carrier, totals)
        problem = self.checkpointer.close()
        if self.checkpointer.latest == update and update in self.checkpointer.steps():
            return 0
        self.log(problem or f"Checkpoint {update} was not written.")
        return UNSAVED
