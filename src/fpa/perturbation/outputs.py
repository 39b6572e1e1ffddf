"""The outputs that curves follow; those that maps explain are the same, so they are the engine's."""

from fpa.engine.outputs import NO_LABELS, OUTPUTS, Output, check_outputs, output

__all__ = ["NO_LABELS", "OUTPUTS", "Output", "check_outputs", "output"]
