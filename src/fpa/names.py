"""How estimators and augmentations are called in front of people."""

import re

AUGMENTATION_NAMES = {"none": "None", "rectangle": "Rectangle", "fpa": "FPA"}

_FORMS = {  # with the sign of the prime
    "text": ("{name}{prime}_{reduction}", "'"),
    "mathtext": ("{name}{prime}$_\\mathrm{{{reduction}}}$", "$'$"),
    "html": ("{name}{prime}<sub>{reduction}</sub>", "′"),
    "latex": ("{name}{prime}\\textsubscript{{{reduction}}}", "$'$"),
}


def estimator_name(name: str, style: str = "text") -> str:
    r"""An estimator the way the paper writes it: as "text", "mathtext" (figures), "html" or "latex".

    >>> estimator_name("vgx_sum"), estimator_name("sqsg_sum", "html"), estimator_name("random")
    ("VG'_sum", 'SQ-SG<sub>sum</sub>', 'Random')

    A name that is not one of ours is shown as it is, escaped where the style needs it.

    >>> estimator_name("my_map<1>", "html"), estimator_name("my_map", "latex")
    ('my_map&lt;1&gt;', 'my\\_map')
    """
    found = re.fullmatch(r"(vg|ig|sg|sqsg)(x?)_(sum|abs)", name)
    if name == "random":
        return "Random"
    if found is None:
        return _escaped(name, style)
    form, prime = _FORMS[style]
    short = {"sqsg": "SQ-SG"}.get(found[1], found[1].upper())
    return form.format(name=short, prime=prime if found[2] else "", reduction=found[3])


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
