"""The plain answer of an evaluation: which explanation is best, can that be trusted, what to type next."""

import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fpa.auditing.lacking import lacking
from fpa.auditing.rule import FEWEST_IMAGES
from fpa.auditing.verdict import Audit
from fpa.errors import counted
from fpa.evaluation.leading import Leading, leading
from fpa.evaluation.rankings import tied
from fpa.evaluation.result import Results
from fpa.scores.fidelity import Fidelity
from fpa.show.cells import Cell
from fpa.show.names import estimator_names, model_name
from fpa.show.summary import with_interval
from fpa.show.words.protocols import in_words
from fpa.show.words.reader import listed

FEW = 3
"""Explanations that cannot be told apart are all named up to this number."""


class Answer(NamedTuple):
    """The parts of the answer, for whoever shows them apart."""

    best: dict[str, str]
    """By model: its best explanation; models without one, and without a reason for that, are not in here."""
    trust: str = ""
    """How far to trust that; empty, like the next, where there is nothing to trust."""
    next: str = ""
    """What to type."""

    @property
    def lines(self) -> list[str]:
        """The answer, a line each."""
        return [*self.best.values(), *([self.trust, f"Next: {self.next}"] if self.next else [])]


SAME = ("data", "data_root", "weights", "mean", "std", "size", "class_index", "workers", "device")
"""Options of an evaluation that name model and images: an audit takes them too."""

ALONE = ("overwrite", "quiet", "quick", "debug")
"""Options that have no value."""


def answer(results: Results) -> list[str]:
    """The best explanation of every model, how far to trust that, and what to type next, a line each."""
    return parts(results).lines


def parts(results: Results) -> Answer:
    """The same in its parts."""
    best = {}
    for key, model in results.models.items():
        found = leading(model)
        if line := next(_best(results, key, found.names, found.areas, by_protocol(found)), ""):
            best[key] = line
    if not any(tied(model) for model in results.models.values()):
        return Answer(best)
    few = (
        f"{counted(results.images_used)} cannot tell, and it" if results.images_used < FEWEST_IMAGES else "It"
    )
    return Answer(best, f"Can that be trusted? {few} was not audited.", _next(results))


def of_audit(audit: Audit) -> str:
    """The best explanation of a model that was audited; empty where there is nothing to explain."""
    if not audit.measured:
        return ""
    if audit.verdict == "unreliable":
        return (
            "No explanation can be called the best: the test that would tell is not reliable on this model."
        )
    # The verdict is about this protocol, so the answer is, too.
    result = audit.result
    return " ".join(_best(result.results, result.name, tied(result), result.fidelity, ""))


def by_protocol(found: Leading) -> str:
    """By which protocol that is said, in words; empty where it is the one of the evaluation itself."""
    protocol = found.protocol
    return "" if protocol is None else f" by {in_words(protocol.features, str(protocol.masking['name']))}"


def _best(
    results: Results, key: str, leading: list[str], areas: Mapping[str, Fidelity], protocol: str
) -> Iterator[str]:
    whose = _named(key) if len(results.models) > 1 else "this model"
    if key in results.not_above_chance:
        yield f"No explanation of {whose}: it is no better than chance."
    elif leading:
        names = estimator_names(results)
        shown = [f"{names[name]} (A {_area(areas[name])})" for name in leading]
        yield _led(shown, f"{whose}{protocol}")


def _named(key: str) -> str:
    """A model of several; "None" would read like nobody."""
    return "the model without augmentation" if key == "none" else f"the model {model_name(key)}"


def _led(shown: list[str], whose: str) -> str:
    """The best explanation, or those that cannot be told apart."""
    if len(shown) == 1:
        return f"The best explanation of {whose}: {shown[0]}."
    if len(shown) <= FEW:
        return f"The best explanations of {whose}: {listed(shown)}, which cannot be told apart."
    others = counted(len(shown) - 1, "other")
    return f"No explanation of {whose} is clearly the best: {shown[0]} and {others} cannot be told apart."


def _area(fidelity: Fidelity) -> str:
    return Cell(*with_interval(fidelity.area, fidelity.interval, digits=1)).text


def _next(results: Results) -> str:
    """What to type, in the language that was used; the evaluation itself can be judged if it has enough."""
    description = results.first.description
    at_shell = description.subject.command is not None or results.recipe is not None
    enough = lacking(description.plan) is None
    if not at_shell:
        return "fpa.audit_result(result)" if enough else "fpa.audit(model, data)"
    if enough and results.folder is not None:
        return f"fpa audit {shlex.quote(str(results.folder))}"
    if results.recipe is None or results.folder is None:
        return audit_command(description.subject.command or "")
    variant = "fpa" if "fpa" in results.models else next(iter(results.models))
    return f"fpa audit {shlex.quote(str(results.folder / variant / 'model.safetensors'))}"


def audit_command(command: str) -> str:
    """How to audit the model that was evaluated by a command: with its own model, weights and images.

    >>> audit_command("fpa evaluate resnet.pth --data 'folder:my photos' --points 3 --quiet --size=64")
    "fpa audit resnet.pth --data 'folder:my photos' --size=64"
    """
    words = shlex.split(command)[2:]
    kept: list[str] = []
    model = "MODEL"
    while words:
        word = words.pop(0)
        option = word.startswith("--")
        name = word.removeprefix("--").partition("=")[0]
        alone = "=" in word or name in ALONE or not words or words[0].startswith("--")
        values = [word] if not option or alone else [word, words.pop(0)]
        if not option:
            model = word
        elif name == "model":
            model = values[-1].removeprefix("--model=")
        elif name in SAME:
            kept += values
    return shlex.join(["fpa", "audit", model, *kept])
