"""From a model and images to an answer: `evaluate`, and the `Result` it returns."""

import html
import io
import json
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fpa import __version__
from fpa.data.loaders import image_batches
from fpa.data.normalisation import Normalisation, as_normalisation
from fpa.engine import Engine
from fpa.errors import InputError
from fpa.evaluation.examples import Examples, _Kept, _pictures, make_examples
from fpa.evaluation.loop import evaluate_blocks
from fpa.evaluation.shards import Evaluation
from fpa.explanation import Estimators, Settings, get_estimators, needs_numbers
from fpa.files import read_arrays, writable_folder, write_arrays
from fpa.masking import Masking, get_masking
from fpa.models.wrap import classifier, input_channels, warn_of_probabilities
from fpa.progress import Tell
from fpa.scores.fidelity import Fidelity
from fpa.statistics.contradictions import KINDS, Reliability, reliability
from fpa.statistics.intervals import Estimate
from fpa.study.results import ModelResult, Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


FORMAT = 1
"""Version of a saved result."""


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """How well each estimator explains one model, from `fpa.evaluate`.

    It prints as a table in a terminal and in a notebook.
    """

    name: str
    evaluation: Evaluation
    """The curves of every image."""
    fidelity: dict[str, Fidelity]
    """For every estimator the area A, with its interval."""
    reliability: Reliability
    """How often MIF and LIF contradict each other; without pairs if there are no two explanations."""
    accuracy: float | None
    """Share of correctly classified images among those with a label; None if there are none."""
    signed: dict[str, bool]
    """For every estimator whether it is signed; "random" is in neither group and not in here."""
    classes: list[str]
    """Names of the classes, in the order of the logits."""
    settings: dict[str, Any]
    """What was asked for: masking, points, features, seed, numbers of the estimators, normalisation."""
    examples: Examples | None = None
    """A few images with the maps of every estimator."""
    made_with: dict[str, Any] = field(default_factory=dict)
    """Versions and device."""

    @property
    def study(self) -> Study:
        """The same as a study of one model, which `fpa.figures`, `fpa.tables` and `fpa.report` take."""
        model = ModelResult(
            self.name, self.accuracy, {}, self.evaluation, self.fidelity, self.reliability, self.examples
        )
        manifest = {**self.made_with, "settings": self.settings}
        return Study(self.name, None, self.classes, {self.name: model}, self.signed, manifest)

    def table(self) -> "pd.DataFrame":
        """A row an estimator, best first in its group: A with its interval, both areas, images used."""
        from fpa.show.tables import results_table

        rows = results_table(self.study)
        columns = ["kind", "area", "interval", "area_mif", "area_lif", "images_used", "images_left_out"]
        rows = rows.set_index("estimator")[columns]
        return rows.sort_values(["kind", "area"], ascending=[True, False])

    def to_pandas(self) -> "pd.DataFrame":
        """A row an image and estimator: the image's areas in percent (NaN where it was left out)."""
        import pandas as pd

        found = self.evaluation
        return pd.concat(
            [
                pd.DataFrame(
                    {
                        "estimator": name,
                        "image": found.indices,
                        "label": found.labels,
                        "explained_class": found.targets,
                        "unmasked": found.unmasked,
                        "area_mif": score.mif_areas,
                        "area_lif": score.lif_areas,
                        "area": score.lif_areas - score.mif_areas,
                    }
                )
                for name, score in self.fidelity.items()
            ],
            ignore_index=True,
        )

    def plot(self, signed: bool | None = None) -> "Figure":
        """The mean perturbation curves, MIF above LIF, of all, the signed or the unsigned estimators."""
        from fpa.show.figures.results import perturbation_curves

        return perturbation_curves(self.study, signed)

    def report(self, path: str | Path, command: str | None = None) -> Path:
        """Write one HTML file with the verdict, the table, the curves and an explorer of single images."""
        from fpa.show.report.page import write_report

        return write_report(self.study, path, command)

    def save(self, path: str | Path) -> Path:
        """Write everything to one file (.npz), which `fpa.load_result` reads back."""
        target = Path(path)
        target = target if target.suffix == ".npz" else target.with_name(f"{target.name}.npz")
        writable_folder(target.parent)
        write_arrays(target, _to_arrays(self))
        return target

    def __str__(self) -> str:
        from rich.console import Console

        from fpa.show.tables import headline, notes, terminal

        out = io.StringIO()
        console = Console(file=out, width=80)
        console.print(headline(self.study), highlight=False, markup=False)
        console.print(terminal(self.study))
        for line in [*notes(self.study), *self._said()]:
            console.print(line, highlight=False, markup=False)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from fpa.show.names import estimator_name
        from fpa.show.tables import headline, notes, percent

        def line(*cells: str, tag: str = "td") -> str:
            return f"<tr><th>{cells[0]}</th>{''.join(f'<{tag}>{cell}</{tag}>' for cell in cells[1:])}</tr>"

        lines = [line("accuracy", "", percent(self.accuracy), "", "")]
        lines += [
            line(
                estimator_name(str(name), "html"),
                row.kind,
                f"{row.area:.1f} ± {row.interval:.1f}",
                f"{row.area_mif:.1f}",
                f"{row.area_lif:.1f}",
            )
            for name, row in self.table().iterrows()
        ]
        below = "<br>".join(html.escape(text) for text in [*notes(self.study), *self._said()])
        return (
            f"<p><b>{html.escape(headline(self.study))}</b></p>"
            f"<table><thead>{line(html.escape(self.name), '', 'A', 'MIF', 'LIF', tag='th')}</thead>"
            f"<tbody>{''.join(lines)}</tbody></table><p><small>{below}</small></p>"
        )

    def _said(self) -> list[str]:
        told = {note for score in self.fidelity.values() for note in score.notes}
        return [f"note: {note}" for note in sorted(told)]


def evaluate(
    model: nn.Module,
    loader: Any,
    estimators: Estimators = "paper",
    *,
    masking: str | Masking | None = None,
    points: int = 21,
    settings: Settings | None = None,
    features: str | int = "pixels",
    normalisation: Normalisation | None = None,
    classes: Sequence[str] | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    examples: int = 8,
    folder: str | Path | None = None,
    name: str | None = None,
    progress: bool | Tell = True,
) -> Result:
    """Which explanations describe this model? Explain, perturb and score all images of a loader.

    - `model`: any image classifier; one that is wrapped, compiled, in half precision or returns an object
      with `.logits` is fine, and stays exactly as it was.
    - `loader`: a tensor, (images, labels), a loader, a data set, ...; see `fpa.data.image_batches`.
      Labels are the numbers of the model's outputs; without them only the accuracy is missing.
    - `estimators`: a set ("paper"), names, or a mapping of names to callables, Captum objects, ...
    - `masking`: what removing a pixel means, a name or a callable; by default 0 after normalisation.
    - `features`: what is removed, "pixels" or the side of square patches (16 for most vision transformers).
    - `normalisation`: how the model's images are normalised: needed for bytes and for images in 0..1.
    - `classes`: their names, in the order of the logits.
    - `device`: where to work; by default where the model is.
    - `examples`: images kept with their maps for the report.
    - `folder`: where every block of images is stored at once, so that the same call goes on after a crash;
      by default nothing stays on the disk.

    >>> images = torch.randn(8, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    >>> result = evaluate(net, images, ["ig_sum", "vg_abs"], points=5, progress=False)
    >>> sorted(result.fidelity), result.accuracy
    (['ig_sum', 'vg_abs'], None)
    """
    named, chosen = get_estimators(estimators), settings or Settings()
    if examples < 0:
        raise InputError(f"examples must be at least 0, got {examples}")
    normalisation = as_normalisation(normalisation)
    removal = get_masking(
        masking or "constant", *((normalisation.mean, normalisation.std) if normalisation else ())
    )
    batches = image_batches(loader, normalisation, input_channels(model))
    if folder is not None and batches.drawn:
        raise InputError(
            "the loader shuffles, so a stored evaluation could not be gone on with: use shuffle=False, "
            "without a sampler"
        )
    if needs_numbers(named):
        batches.check_numbers()
    engine = Engine(classifier(model, batches.first, device))
    first = engine.predict(batches.first)
    warn_of_probabilities(first)
    outputs = first.shape[1]
    names = _class_names(classes, outputs, model, loader)
    kept = _Kept(batches, examples)
    with tempfile.TemporaryDirectory(prefix="fpa-") as temporary:
        evaluation = evaluate_blocks(
            engine,
            kept,
            folder or temporary,
            estimators=named,
            settings=chosen,
            masking=removal,
            points=points,
            features=features,
            seed=seed,
            progress=progress,
        )
    shown = None
    if examples:
        images, labels, numbers = kept.chosen()
        shown = make_examples(
            engine, images, _pictures(batches, images)(images), _pictures(batches, images),
            numbers.tolist(), labels, named, chosen, removal, seed,
        )  # fmt: skip
    asked = {
        "estimators": list(named),
        "masking": masking if isinstance(masking, str) else _plain(removal),
        "points": points,
        "features": features,
        "seed": seed,
        **{key: _plain(value) for key, value in asdict(replace(chosen, reference=None)).items()},
        "reference": _plain(chosen.reference),
        "mean": list(normalisation.mean) if normalisation else None,
        "std": list(normalisation.std) if normalisation else None,
    }
    made_with = {
        "versions": {
            "fpa": __version__, "torch": torch.__version__, "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "device": str(engine.device),
        "precision": asdict(engine.precision),
    }  # fmt: skip
    signed = {key: one.signed for key, one in named.items() if one.sign != "baseline"}
    title = name or type(getattr(engine.model, "model", engine.model)).__name__
    return _scored(title, evaluation, signed, names, asked, shown, made_with)


def load_result(path: str | Path) -> Result:
    """The result that `Result.save` wrote; the file is data only, nothing in it can execute code."""
    arrays = read_arrays(Path(path))
    try:
        about = json.loads(str(arrays["about"]))
    except (KeyError, ValueError) as error:
        raise InputError(f"{path} was not written by fpa's Result.save") from error
    if about["format"] != FORMAT:
        raise InputError(f"{path} was written by another version of fpa (this one reads format {FORMAT})")

    def named(prefix: str) -> dict[str, NDArray[Any]]:
        found = {key: values for key, values in arrays.items() if key.startswith(prefix)}
        return {key.removeprefix(prefix): values for key, values in found.items()}

    evaluation = Evaluation(
        fractions=arrays["fractions"],
        indices=arrays["indices"],
        labels=arrays["labels"],
        targets=arrays["targets"],
        unmasked=arrays["unmasked"],
        mif=named("mif."),
        lif=named("lif."),
        shares_mif=named("share_mif.") or None,
        shares_lif=named("share_lif.") or None,
        scores=named("scores."),
        problems=about["problems"],
    )
    shown = named("examples.")
    return _scored(
        about["name"],
        evaluation,
        about["signed"],
        about["classes"],
        about["settings"],
        Examples.from_arrays(shown) if shown else None,
        about["made_with"],
    )


def _class_names(classes: Sequence[str] | None, outputs: int, model: Any, loader: Any) -> list[str]:
    """The names given; else those the model or the data set has, if there are as many as outputs."""
    if classes is not None:
        if len(classes) != outputs:
            raise InputError(f"the model has {outputs} outputs, but {len(classes)} classes are named")
        return [str(one) for one in classes]
    labelled = getattr(getattr(model, "config", None), "id2label", None)  # Hugging Face
    card = getattr(getattr(model, "card", None), "classes", None)  # fpa
    by_number = {str(key): name for key, name in labelled.items()} if isinstance(labelled, Mapping) else {}
    numbers = [str(number) for number in range(outputs)]
    named = [by_number[number] for number in numbers] if by_number.keys() == set(numbers) else None
    found = named or card or getattr(getattr(loader, "dataset", loader), "classes", None)
    if isinstance(found, (list, tuple)) and len(found) == outputs:
        return [str(one) for one in found]
    return [f"class {number}" for number in range(outputs)]


def _scored(
    name: str,
    evaluation: Evaluation,
    signed: dict[str, bool],
    classes: list[str],
    settings: dict[str, Any],
    examples: Examples | None,
    made_with: dict[str, Any],
) -> Result:
    fidelity = {key: evaluation.fidelity(key) for key in evaluation.mif}
    known = evaluation.labels >= 0
    accuracy = float((evaluation.labels == evaluation.targets)[known].mean()) if known.any() else None
    explanations = {key: score for key, score in fidelity.items() if key in signed}
    found = (
        reliability(explanations, signed, leave_out=()) if len(signed) > 1 else _nothing_to_compare(fidelity)
    )
    return Result(name, evaluation, fidelity, found, accuracy, signed, classes, settings, examples, made_with)


def _nothing_to_compare(fidelity: Mapping[str, Fidelity]) -> Reliability:
    names = tuple(fidelity)
    return Reliability(
        by_area=names,
        by_mif=names,
        by_lif=names,
        pairs=(),
        opposite={kind: Estimate(0.0, 0.0, 0.0) for kind in (*KINDS, "all")},
        correlation={group: Estimate(*[float("nan")] * 3) for group in ("all", "signed", "unsigned")},
        used=min(score.used for score in fidelity.values()),
        alpha=0.05,
    )


def _to_arrays(result: Result) -> dict[str, NDArray[Any]]:
    found = result.evaluation
    about = {
        "format": FORMAT,
        "name": result.name,
        "signed": result.signed,
        "classes": result.classes,
        "settings": result.settings,
        "made_with": result.made_with,
        "problems": found.problems,
    }
    arrays: dict[str, NDArray[Any]] = {"about": np.array(json.dumps(about))}
    arrays |= {key: getattr(found, key) for key in ("fractions", "indices", "labels", "targets", "unmasked")}
    parts: dict[str, Mapping[str, NDArray[Any]] | None] = {
        "mif": found.mif,
        "lif": found.lif,
        "share_mif": found.shares_mif,
        "share_lif": found.shares_lif,
        "scores": found.scores,
        "examples": result.examples.to_arrays() if result.examples else None,
    }
    for prefix, values in parts.items():
        arrays |= {f"{prefix}.{key}": value for key, value in (values or {}).items()}
    return arrays


def _plain(value: Any) -> Any:
    """A setting as JSON keeps it."""
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return getattr(value, "__qualname__", None) or repr(value)
