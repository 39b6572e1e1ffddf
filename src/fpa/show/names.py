"""How estimators and augmentations are called in front of people."""

import re
from pathlib import PurePath

from fpa.progress import shortened

AUGMENTATION_NAMES = {"none": "None", "rectangle": "Rectangle", "fpa": "FPA"}


_FORMS = {  # with the sign of the prime
    "text": ("{name}{prime}_{reduction}", "'"),
    "mathtext": ("{name}{prime}$_\\mathrm{{{reduction}}}$", "$'$"),
    "html": ("{name}{prime}<sub>{reduction}</sub>", "′"),
    "latex": ("{name}{prime}\\textsubscript{{{reduction}}}", "$'$"),
}


def estimator_name(name: str, style: str = "text", most: int | None = None) -> str:
    r"""An estimator the way the paper writes it: as "text", "mathtext" (figures), "html" or "latex".

    >>> estimator_name("vgx_sum"), estimator_name("sqsg_sum", "html"), estimator_name("random")
    ("VG'_sum", 'SQ-SG<sub>sum</sub>', 'Random')

    Methods of Captum lose the prefix, files of maps the path. A name that is not one of ours is shown as
    it is. Both are escaped where the style needs it, and shortened to `most` characters.

    >>> estimator_name("captum:LayerGradCam_abs@layer4", "html"), estimator_name("maps:out/mine.npz#cam")
    ('LayerGradCam@layer4<sub>abs</sub>', 'mine#cam')
    >>> estimator_name("my_map<1>", "html"), estimator_name("my_map", "latex")
    ('my_map&lt;1&gt;', 'my\\_map')
    """
    if name == "random":
        return "Random"
    form, sign = _FORMS[style]
    found = re.fullmatch(r"(vg|ig|sg|sqsg)(x?)_(sum|abs)", name)
    if found is not None:
        short = {"sqsg": "SQ-SG"}.get(found[1], found[1].upper())
        return form.format(name=short, prime=sign if found[2] else "", reduction=found[3])
    captum = re.fullmatch(r"captum:(\w+?)(?:_(sum|abs))?(@.+)?", name)
    if captum is not None:
        shown = _escaped(shortened(captum[1] + (captum[3] or ""), most), style)
        return form.format(name=shown, prime="", reduction=captum[2]) if captum[2] else shown
    if name.startswith("maps:"):
        file, _, array = name.removeprefix("maps:").partition("#")
        name = PurePath(file).stem + (f"#{array}" if array else "")
    return _escaped(shortened(name, most), style)


def augmentation_name(name: str) -> str:
    """An augmentation in front of people.

    >>> augmentation_name("fpa"), augmentation_name("mine")
    ('FPA', 'mine')
    """
    return AUGMENTATION_NAMES.get(name, name)


def _escaped(name: str, style: str) -> str:
    if style == "html":
        import html

        return html.escape(name)
    if style == "latex":
        return re.sub(r"([&%$#_{}])", r"\\\1", name)
    if style == "mathtext":
        return name.replace("$", r"\$")
    return name
