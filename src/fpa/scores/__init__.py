"""What an explanation is worth, as a number an image: a file a score.

A, the area between the LIF and the MIF curve, is the first.
"""

from fpa.scores.fidelity import Fidelity, common_images

__all__ = ["Fidelity", "common_images"]
