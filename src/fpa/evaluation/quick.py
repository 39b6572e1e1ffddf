"""A first look: fewer images, steps and points, and one protocol, wherever nothing else was said."""

from dataclasses import replace
from typing import Any, TypeVar

from fpa.evaluation.options import COMPARED_MASKINGS, AuditOptions, EvaluateOptions

Options = TypeVar("Options", EvaluateOptions, AuditOptions)

IMAGES = 100
"""As few as an audit can judge."""

CHANGED: dict[str, Any] = {"ig_steps": 25, "sg_samples": 8, "points": 11}
"""Of what is usual; an audit besides looks at the paper's estimators and the masking judged alone."""


def quickened(options: Options) -> Options:
    """The options of a quick look, if it is one; what was said otherwise stays.

    >>> quick = quickened(EvaluateOptions(quick=True, points=5))
    >>> quick.ig_steps, quick.points
    (25, 5)
    """
    if not options.quick:
        return options
    usual = type(options)()
    changes = dict(CHANGED)
    if options.settings is not None:  # they say steps and copies
        changes = {"points": CHANGED["points"]}
    if isinstance(options, AuditOptions):
        changes["estimators"] = ("paper",)
        changes["maskings"] = COMPARED_MASKINGS[: 0 if options.masking else 1]
    made = replace(options)
    for name, value in changes.items():
        if getattr(options, name) == getattr(usual, name):
            setattr(made, name, value)
    return made
