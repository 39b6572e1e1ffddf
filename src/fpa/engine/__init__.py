"""Many passes through a classifier, fast: rows are built on the device, batched, run, and handed back.

The engine chooses batch size and arithmetic; the model it was given stays exactly as it was.
"""

from fpa.engine.engine import Engine, Precision, Work

__all__ = ["Engine", "Precision", "Work"]
