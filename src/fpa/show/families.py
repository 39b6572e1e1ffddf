"""The families of estimators: their names, the formulas of their maps, and what tells them apart."""

from html import escape
from typing import NamedTuple

from fpa.errors import printable
from fpa.evaluation.result import Results
from fpa.explanation.facts import EstimatorFacts
from fpa.show import summary


class Family(NamedTuple):
    """What the estimators of a family have in common."""

    title: str
    formula: str
    """The raw map, or the map itself where it has no channels, as HTML."""
    plain: bool = False
    """Whether the formula is already that of the map."""


_FREE = "Model-free map"
FAMILIES = {
    "ig": Family("Integrated gradients", "(x − r) · mean<sub>k=1…n</sub> ∇f(r + (x − r) k/n)"),
    "vg": Family("Vanilla gradient", "∇f(x)"),
    "sg": Family("SmoothGrad", "mean<sub>k=1…n</sub> ∇f(x + ε<sub>k</sub>)"),
    "sqsg": Family("Squared SmoothGrad", "mean<sub>k=1…n</sub> (∇f(x + ε<sub>k</sub>))²"),
    "gradcam": Family(
        "Class activation map", "ReLU(Σ<sub>k</sub> a<sub>k</sub> mean ∂f/∂a<sub>k</sub>)", True
    ),
    "gradcam++": Family(
        "Class activation map",
        "ReLU(Σ<sub>k</sub> a<sub>k</sub> Σ α<sub>k</sub> ReLU(∂f/∂a<sub>k</sub>))",
        True,
    ),
    "layercam": Family(
        "Class activation map", "ReLU(Σ<sub>k</sub> a<sub>k</sub> ReLU(∂f/∂a<sub>k</sub>))", True
    ),
    "random": Family(_FREE, "random numbers", True),
    "centre": Family(_FREE, "exp(−8 d²), d the distance from the middle in sides of the image", True),
    "edges": Family(_FREE, "edges of the image, by Sobel’s filters", True),
    "input": Family(_FREE, "|x − m|, m the fully masked image", True),
    "true": Family("Truth", "true effect of the pixel’s region / pixels of the region, with damage", True),
}
_SYMBOLS = {
    "f": "the output that is explained, by default the logit of the class",
    "x": "the image as the model takes it",
    "∇f": "the gradient of f by the pixels",
    "r": "the reference, where integration starts",
    "n": "how many steps or samples",
    "ε": "noise with sigma times the image’s range",
    "a<sub>k</sub>": "channel k of a layer",
    "α<sub>k</sub>": "weights from squares and cubes of ∂f/∂a (Chattopadhay et al., 2018)",
    "Σ<sub>c</sub>": "the sum over colour channels",
}


class EstimatorRow(NamedTuple):
    """A line of the table that explains the estimators."""

    family: str
    formula: str
    """As HTML."""
    settings: str
    sign: str


def family_of(name: str, facts: EstimatorFacts) -> str:
    """What estimators of one colour share: the raw map or its method, knowing no model; else the name."""
    if facts.sign == "baseline" and not facts.knows_truth:
        return "model-free"
    if facts.raw is None:  # results of another origin: the name is all there is
        label = facts.label.name.lower().replace("-", "")
        return label if label in FAMILIES else name
    own = facts.kind in FAMILIES or facts.kind == "cam"
    return str(facts.kind if own else facts.raw.get("method") or name)


def estimator_rows(results: Results) -> dict[str, EstimatorRow]:
    """Family, formula, settings and kind of every estimator."""
    facts = results.first.description.plan.estimators
    return {name: _row(name, facts[name]) for name in results.estimators}


def symbols(results: Results) -> dict[str, str]:
    """What the symbols of their formulas mean, by the symbol as HTML."""
    formulas = " ".join(each.formula for each in estimator_rows(results).values())
    return {
        symbol: text
        for symbol, text in _SYMBOLS.items()
        if {"r": "(r +", "n": "…n"}.get(symbol, symbol) in formulas
    }


def _row(name: str, facts: EstimatorFacts) -> EstimatorRow:
    settings = {"name": name} if facts.raw is None else dict(facts.raw)
    kind = str(settings.pop("name"))
    if kind == "cam":
        kind = str(settings.pop("method"))
    family = FAMILIES.get(kind)
    if kind == "captum":
        family = Family("Captum", f"Captum’s {escape(str(settings.pop('method')))}")
    elif kind == "maps":
        family = Family("Maps from a file", "read from a file")
        settings = {}
    elif family is None:
        family = Family("Your own", f"computed by {escape(printable(name))}", True)
        settings = {}
    formula = family.formula
    if not family.plain:
        formula = f"x · {formula}" if facts.times_input else formula
        formula = "Σ<sub>c</sub> " + (f"|{formula}|" if facts.reduction == "abs" else formula)
    if facts.blur is not None:
        formula = f"Gaussian blur of {formula}"
        settings = {"sigma of the blur": facts.blur}
    shown = {key: value for key, value in settings.items() if value is not None}
    sign = "blurred twin" if facts.sign == "twin" else facts.sign
    return EstimatorRow(family.title, formula, summary.in_words(shown), sign)
