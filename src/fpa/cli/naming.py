"""The folders that commands name themselves, after what tells their results from others."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fpa.evaluation.options import AuditOptions, EvaluateOptions
from fpa.typed import typed_fields

LONGEST_NAME = 80
"""Characters of the settings in the name of a folder."""

NOT_IN_NAMES = ("count", "quick", "batch_size", "examples", "score_images", "part", "wait")
"""Options that do not tell the folder of a result from others; two of them stand at the end of its name."""


def default_output(*parts: str | int | None) -> Path:
    """The folder of a command's results where none is named, from what tells them from others.

    >>> str(default_output("evaluate", "shapes-fpa", 50)), str(default_output("evaluate", "shapes-fpa", None))
    ('runs/evaluate-shapes-fpa-50', 'runs/evaluate-shapes-fpa')
    """
    return Path("runs") / "-".join(str(part) for part in parts if part)


def told_apart(how: EvaluateOptions | AuditOptions) -> str:
    """What was set of the options, for the name of a folder.

    >>> told_apart(EvaluateOptions(("ig_sum", "vg_abs"), points=3, count=12))
    'estimators-ig_sum+vg_abs-points3'
    """
    usual = vars(type(how)())
    names = [name for name in typed_fields(how) if name not in NOT_IN_NAMES]
    chosen = {name: getattr(how, name) for name in names}
    return in_a_name({name: value for name, value in chosen.items() if value != usual[name]})


def in_a_name(settings: Mapping[str, Any]) -> str:
    """Settings as a part of a folder's name; of many the beginning.

    Where two share it, the folder of the first refuses the second, whose plan is another.

    >>> in_a_name({"features": "1/8", "protocols": ["1/4+blur", "usual"]})
    'features1_8-protocols1_4blur+usual'
    >>> in_a_name({"ig_steps": 5, "masking": {"name": "blur", "sigma": 4}, "scores": ["A", "deletion"]})
    'ig_steps5-masking-blur-sigma4-scores-A+deletion'
    """
    parts = []
    for name, value in settings.items():
        if value is not None:
            words = _in_words(value)
            parts.append(f"{name}{words}" if words[:1].isdigit() else f"{name}-{words}")
    return "-".join(parts)[:LONGEST_NAME].rstrip("-+.")


def _in_words(value: Any) -> str:
    """A setting in letters, digits and dots; a share of the side keeps its two numbers apart."""
    if isinstance(value, Mapping):
        return "-".join(
            _in_words(part) if key == "name" else f"{key}{_in_words(part)}" for key, part in value.items()
        )
    listed = [value] if isinstance(value, str) or not isinstance(value, Sequence) else value
    shares_kept = (re.sub(r"^(\d+)/(\d)", r"\1_\2", str(each)) for each in listed)
    return "+".join(re.sub(r"[^\w.]+", "", each) for each in shares_kept)
