"""Many passes through a classifier, fast: rows are built on the device, batched, run, and handed back.

The engine chooses batch size and arithmetic; the model it was given stays exactly as it was.
"""

from fpa.engine.arithmetic import DEFAULT_PRECISION, Precision, same_logits
from fpa.engine.devices import compiled, cuda_arithmetic
from fpa.engine.engine import Engine
from fpa.engine.works import Work

__all__ = ["DEFAULT_PRECISION", "Engine", "Precision", "Work", "compiled", "cuda_arithmetic", "same_logits"]
