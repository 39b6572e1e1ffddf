"""What a model answers to a few fixed images: it tells models of the same weights and other code apart.

Read and compared without torch; `probing` asks the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fpa.errors import InputError
from fpa.values import check_type, part_of

LOGITS = {"float64": 1e-6, "float32": 1e-3, "float16": 0.03, "bfloat16": 0.1}
"""By the arithmetic of what is stored: how far logits may be off, as a share of their root mean square.

Devices add numbers in another order. The logits of three ResNets differ by 7e-7 between float32 and float64
(research/answers.py); another activation, temperature or hook changes far more.
"""

GRADIENTS = {"float64": 0.05, "float32": 0.5, "float16": 0.7, "bfloat16": 0.7}
"""The same for gradients, for code that changes nothing but these.

They are off by more, 3e-3 there: ReLUs and poolings next to their kinks switch.
"""


@dataclass(frozen=True)
class Answers:
    """Sketches of a model's logits and input gradients, see `fpa.data.sketches`."""

    arithmetic: str
    """A key of `LOGITS`."""
    logits: list[list[float]]
    gradients: list[list[float]] | None = None
    """None where the model has none."""

    def is_like(self, now: "Answers") -> bool:
        """Whether a model that answers so `now` is the one of these answers, which were stored."""
        if not _near(self.logits, now.logits, LOGITS[self.arithmetic]):
            return False
        if self.gradients is None or now.gradients is None:
            return True
        return _near(self.gradients, now.gradients, GRADIENTS[self.arithmetic])

    def to_json(self) -> dict[str, Any]:
        """As evaluation.json has it."""
        gradients = {} if self.gradients is None else {"gradients": self.gradients}
        return {"arithmetic": self.arithmetic, "logits": self.logits, **gradients}

    @classmethod
    def from_json(cls, stored: Any) -> "Answers":
        """What `to_json` made, or the error that says what is wrong with it."""
        check_type("answers", stored, dict[str, Any])
        answers = cls(
            arithmetic=part_of(stored, "arithmetic", str, of="answers"),
            logits=part_of(stored, "logits", list[list[float]], of="answers"),
            gradients=part_of(stored, "gradients", list[list[float]] | None, of="answers"),
        )
        sizes = {len(row) for row in (*answers.logits, *(answers.gradients or ()))}
        if answers.arithmetic not in LOGITS or len(sizes) > 1:
            raise InputError("answers: they are not of the form in which they are written")
        return answers


def answers_of(stored: Mapping[str, Any] | None) -> dict[str, Answers] | None:
    """By model, "model" and "judge", what evaluation.json has of its answers."""
    return None if stored is None else {who: Answers.from_json(each) for who, each in stored.items()}


def _near(before: list[list[float]], now: list[list[float]], tolerance: float) -> bool:
    """Whether numbers differ by no more than a share of their size, all together."""
    old = np.array(before)
    new = np.array(now)
    if old.shape != new.shape:
        return False
    size = np.sqrt(np.mean(old**2)) + 1e-12  # answers that are 0 may stay 0
    return bool(np.sqrt(np.mean((old - new) ** 2)) <= tolerance * size)
