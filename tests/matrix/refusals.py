"""The combinations that a job may not have: as worker/trainer/plan.cc has them, and no others."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    names: tuple  # of techniques that do not go together
    sentence: str  # part of what the trainer says

    def applies(self, cell):
        return set(self.names) <= {technique.name for technique in cell.techniques}


REFUSALS = ()
