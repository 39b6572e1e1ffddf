"""How estimators and models are called in front of people."""

import html
from collections.abc import Mapping
from typing import Any

from fpa.evaluation.result import Results
from fpa.progress import shortened

_VARIANTS = {"none": "None", "rectangle": "Rectangle", "fpa": "FPA"}

_FORMS = {  # the prime, and the reduction below the line
    "text": ("'", "_{}"),
    "mathtext": ("$'$", "$_\\mathrm{{{}}}$"),
    "html": ("′", "<sub>{}</sub>"),
    "latex": ("$'$", "\\textsubscript{{{}}}"),
}


def estimator_name(
    name: str, style: str = "text", *, label: Mapping[str, Any] | None = None, most: int | None = None
) -> str:
    r"""An estimator the way the paper writes it: as "text", "mathtext" (figures), "html" or "latex".

    `label` has the parts of the name, as a plan stores them; without it the name is shown as it is. Both are
    escaped where the style needs it, and shortened to `most` characters.

    >>> estimator_name("vgx_sum", label={"name": "VG", "prime": True, "reduction": "sum"})
    "VG'_sum"
    >>> estimator_name("sqsg_sum", "html", label={"name": "SQ-SG", "prime": False, "reduction": "sum"})
    'SQ-SG<sub>sum</sub>'
    >>> estimator_name("my_map<1>", "html"), estimator_name("my_map", "latex")
    ('my_map&lt;1&gt;', 'my\\_map')
    """
    prime, below = _FORMS[style]
    parts = label or {"name": name}
    text = _escaped(shortened(str(parts["name"]), most), style)
    text += prime if parts.get("prime") else ""
    return text + (below.format(parts["reduction"]) if parts.get("reduction") else "")


def estimator_names(*several: Results, style: str = "text", most: int | None = None) -> dict[str, str]:
    """Every estimator of these results, by name, as people see it."""
    return {
        name: estimator_name(name, style, label=parts.get("label"), most=most)
        for results in several
        for name, parts in results.first.plan["estimators"].items()
    }


def model_name(name: str) -> str:
    """A variant of a study, an augmentation, or any other model, as people see it.

    >>> model_name("fpa"), model_name("mine")
    ('FPA', 'mine')
    """
    return _VARIANTS.get(name, name)


def _escaped(name: str, style: str) -> str:
    if style == "html":
        return html.escape(name)
    special = {"latex": "&%$#_{}", "mathtext": "$"}.get(style, "")
    return name.translate({ord(character): f"\\{character}" for character in special})
