"""What work takes: counted passes times the measured time of a pass, memory and disk."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fpa import showing

LIMIT = 10.0
"""Seconds that an estimate may take."""

LONG = 600.0
"""Seconds of work from which on a shorter way is offered."""


@dataclass(frozen=True)
class Stage:
    """A part of the work, and what it takes."""

    name: str
    """What is done: "training", "evaluation", "audit", ..."""
    seconds: float
    """Of what several processes share: one alone takes so long."""
    once: float = 0.0
    """Seconds of what the first process does alone."""
    shares: int = 1
    """Into how many parts it can be shared out: blocks of images, or the images of a batch."""
    passes: Mapping[str, int] = field(default_factory=dict)
    """By kind: "gradients", "forwards", "steps"."""
    memory: int = 0
    """Bytes that each process holds at most: on CUDA those of the device; 0: unknown."""
    disk: int = 0
    """Bytes of what stays on the disk."""
    longer: bool = False
    """Whether it takes longer than that: a single image did not end in the time for an estimate."""
    will_compile: bool = False
    """Whether passes will be compiled, and take less: they were timed as they are."""

    def seconds_with(self, processes: int = 1) -> float:
        """What so many processes take that have a device like this one each."""
        largest_share = math.ceil(self.shares / processes) / max(self.shares, 1)
        return self.once + self.seconds * largest_share


@dataclass(frozen=True)
class Estimate:
    """What work takes on this machine, before it starts.

    >>> estimate = Estimate((Stage("evaluation", 80.0, once=4.0, shares=10, disk=1000),), "cpu")
    >>> estimate.seconds, estimate.seconds_with(8), estimate.disk
    (84.0, 20.0, 1000)
    """

    stages: tuple[Stage, ...]
    device: str
    """That was measured."""
    images: int | None = None
    """That are evaluated."""

    @property
    def seconds(self) -> float:
        """Of all stages, one after the other, in one process."""
        return self.seconds_with(1)

    def seconds_with(self, processes: int) -> float:
        """What so many processes take that have a device like this one each."""
        return sum(stage.seconds_with(processes) for stage in self.stages)

    @property
    def memory(self) -> int:
        """Bytes that each process holds at most; 0: unknown."""
        return max((stage.memory for stage in self.stages), default=0)

    @property
    def disk(self) -> int:
        """Bytes of what stays on the disk."""
        return sum(stage.disk for stage in self.stages)

    @property
    def longer(self) -> bool:
        """Whether it takes longer than that."""
        return any(stage.longer for stage in self.stages)

    @property
    def is_long(self) -> bool:
        """Whether one would rather know it before: more than ten minutes."""
        return self.seconds > LONG

    def __str__(self) -> str:
        return showing.estimate_text(self)
