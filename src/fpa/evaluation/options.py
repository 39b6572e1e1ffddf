"""The options of evaluations and audits, each declared once: name, type, default and help.

The fields of these classes are the keywords of `make_plan`, `evaluate` and `audit`, the options of the
commands of these names, and the fields of a recipe's `evaluation`. What a docstring says of a field is the
help text of all of them. A field that takes more in Python than can be typed says as which type text is read;
one that nobody can type is for Python alone.

Importing this module does not import torch, so that a command can show its help at once.
"""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from fpa.errors import at_least
from fpa.progress import Tell
from fpa.typed import PYTHON_ONLY, read_as

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fpa.engine.arithmetic import Precision
    from fpa.engine.engine import Engine
    from fpa.explanation import Settings
    from fpa.models.hubs import Opened

PrecisionWord = Literal["auto", "float32", "tf32", "bfloat16"]

AUDITED = ("paper", "baselines", "twins")
"""The paper's ten, and what they must beat: no gradients, and curves under the masking judged only."""

COMPARED_MASKINGS = ("constant", "mean", "blur", "uniform")
"""The masking that an audit judges, and those that it is compared with."""


MOST_EXAMPLES = 1000
"""Images whose maps are all held at once, and drawn into one page."""


@dataclass(kw_only=True)
class Options:
    """What all options have in common: a number lies between the `least` and the `most` of its field."""

    prefix: ClassVar[str] = ""
    """What stands before the names of the fields in errors."""

    def __post_init__(self) -> None:
        for item in fields(self):
            if "least" in item.metadata:
                least = item.metadata["least"]
                most = item.metadata.get("most", math.inf)
                at_least(f"{self.prefix}{item.name}", getattr(self, item.name), least, most)

    def with_fields_of(self, other: "Options") -> Self:
        """These options with the values of all fields that others have too."""
        made = copy.copy(self)
        for item in fields(self):
            if hasattr(other, item.name):
                setattr(made, item.name, getattr(other, item.name))
        return made


@dataclass(kw_only=True)
class CurveOptions(Options):
    """Explaining, and perturbing along curves.

    Attributes:
        estimators: paper (the paper's ten), baselines (maps that know no model), twins (the other maps,
            blurred), or names of estimators, captum:METHOD and maps:FILE included; in Python also a mapping
            of names to functions, Captum objects and the like, see `fpa.get_estimators`.
        ig_steps: Steps of integrated gradients.
        sg_samples: Noisy copies of SmoothGrad and its squared variant.
        sigma: Standard deviation of their noise, as a share of each image's range.
        reference: Where integrated gradients start: masked (the fully masked image) or black.
        points: Points of a perturbation curve, evenly spaced from 0 to 100 % of the features.
        features: What is removed together: pixels, square patches of a share of the image's side (1/8) or of
            so many pixels (16 for most vision transformers), or segments (about 100 superpixels of each
            image; segments:50 for about so many; at 32 px far fewer, segments:30 gives 4 to 20).
        precision: Arithmetic of gradients and forward passes: auto (what suits the device), float32, tf32 or
            bfloat16.
        outputs: What is followed while pixels are removed: logit, centred, margin, log_odds, probability or
            accuracy; the first is scored. Where that is the logit, the centred one is followed too.

    """

    estimators: str | Iterable[Any] | Mapping[str, Any] = field(
        default=("paper",), kw_only=False, metadata=read_as(tuple[str, ...])
    )
    ig_steps: int = field(default=200, metadata={"least": 1})
    sg_samples: int = field(default=15, metadata={"least": 1})
    sigma: float = field(default=0.15, metadata={"least": 0})
    reference: Literal["masked", "black"] = "masked"
    points: int = field(default=21, metadata={"least": 3})
    features: str | int = "pixels"
    precision: "str | Precision | None" = field(default="auto", metadata=read_as(PrecisionWord))
    outputs: str | Sequence[str] = field(default=("logit",), metadata=read_as(tuple[str, ...]))


@dataclass(kw_only=True)
class ScoreOptions(Options):
    """Scoring.

    Attributes:
        maps_of: The output that the maps explain; default: the one that is scored.
        scores: Names of scores, module:NAME, or all that can be computed without explaining again; A is
            always among them. One that was named and cannot be computed is refused before any work.
        score_images: Images that scores which explain again are computed for, evenly over the data.

    """

    maps_of: str | None = None
    scores: Any = field(default=("A",), metadata=read_as(tuple[str, ...]))
    score_images: int = field(default=100, metadata={"least": 1})


@dataclass(kw_only=True)
class TargetOptions(Options):
    """What is explained, and by which numbers.

    Attributes:
        output: The output that is explained and scored: one name in place of `outputs`, as in `fpa.explain`.
        targets: The class explained: predicted, label, best:2 (the second best of each image, and so on), or
            the number or the name of a class; in Python also one for every image of the data: numbers in a
            list, an array or a tensor.
        seed: Seed of everything random.
        settings: ig_steps, sg_samples, sigma and reference in one, see `fpa.Settings`.
        normalisation: How the model's images are normalised: (mean, std), v2.Normalize, "imagenet" or an
            `fpa.Normalisation`; needed for bytes, for images in 0..1 and to know
            what black is; and for folders and published data sets by name unless the model says it (a model
            of fpa or timm, or one from `fpa.open_model`).

    """

    output: str | None = field(default=None, metadata=PYTHON_ONLY)
    targets: str | int | Sequence[int] = field(default="predicted", metadata=read_as(str | int))
    seed: int = field(default=0, metadata={"least": 0})
    settings: "Settings | None" = field(default=None, metadata=PYTHON_ONLY)
    normalisation: Any = field(default=None, metadata=PYTHON_ONLY)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalisation is not None:  # not imported at the top: it needs torch
            from fpa.data.normalisation import as_normalisation

            self.normalisation = as_normalisation(self.normalisation)


@dataclass(kw_only=True)
class ProtocolOptions(Options):
    """Putting the same maps to the test in several ways.

    Attributes:
        protocols: Further ways to put the same maps to the test, beside the first one: FEATURES or
            FEATURES+MASKING, as in 1/8 and segments:50+blur; without a value, or usual: pixels, 1/8, 1/4,
            segments:50 and 1/8+blur; in Python also a mapping of names to an `fpa.Protocol` each.

    """

    protocols: Any = field(default=(), metadata=read_as(tuple[str | int, ...], alone="usual"))


@dataclass(kw_only=True)
class MaskingOptions(Options):
    """Removing features.

    Attributes:
        masking: What removing a pixel means: constant (0 after normalisation), black, mean, minimum, maximum,
            uniform, blur, bokeh, road, drop (patches of a vision transformer are not given to it) or
            module:Class, with parameters as in {"name": "blur", "sigma": 4}; in Python also a masking or a
            function.
        maskings: Further maskings by name, under which the same maps are perturbed.
        fractions: Of the features that are removed, in place of points evenly from 0 to 1 (0.95 with road).

    """

    masking: Any = field(default=None, metadata=read_as(dict[str, Any] | str | None))
    maskings: Mapping[str, Any] | None = field(default=None, metadata=PYTHON_ONLY)
    fractions: Sequence[float] | None = field(default=None, metadata=PYTHON_ONLY)


@dataclass(kw_only=True)
class ExampleOptions(Options):
    """What is kept to be shown.

    Attributes:
        examples: Images shown with their maps in figures and report.

    """

    examples: int = field(default=8, metadata={"least": 0, "most": MOST_EXAMPLES})


@dataclass(kw_only=True)
class SubjectOptions(Options):
    """The model's images, and where to work.

    Attributes:
        count: How many test images: a random choice that is always the same (of a stream, and of a loader
            that shuffles, the first ones); default: all of them, or the data set's own fixed choice.
        quick: A first look in a fraction of the time: 100 images, fewer steps and points, one protocol, as
            far as nothing else is said. It says what it cannot decide.
        batch_size: Largest number of images in a pass; default: what fits in memory.
        class_index: Which output of the model each class of the data stands for: a list [0, 217] or an array,
            a mapping of names to numbers, or a JSON file of one.
        device: Where to work; default: where the model is.
        folder: Where every block of images is stored as soon as it is done, so that the same call continues
            after a crash; default: nothing stays on the disk.
        name: What the model is called in tables and reports.
        progress: Whether a bar is shown, or what is told instead.
        part: Which blocks of images this process makes: 3/8 (the third of eight parts; fpa report shows the
            whole when all are there), job (its share of what torchrun, accelerate or srun have started) or
            all. Default: job; in Python: all.
        wait: Minutes that a job waits for a further block of its other processes.

    """

    count: int | None = field(default=None, metadata={"least": 1})
    quick: bool = False
    batch_size: int | None = field(default=None, metadata={"least": 1})
    class_index: Any = field(default=None, metadata=PYTHON_ONLY)
    device: "torch.device | str | None" = field(default=None, metadata=PYTHON_ONLY)
    folder: str | Path | None = field(default=None, metadata=PYTHON_ONLY)
    name: str | None = field(default=None, metadata=PYTHON_ONLY)
    progress: bool | Tell = field(default=True, metadata=PYTHON_ONLY)
    part: str | None = None
    wait: float = field(default=60.0, metadata={"least": 0})


@dataclass(kw_only=True)
class PlanOptions(ScoreOptions, ProtocolOptions, MaskingOptions, TargetOptions, CurveOptions):
    """The options of `make_plan`: all that determines the numbers of an evaluation."""


@dataclass(kw_only=True)
class EvaluateOptions(ExampleOptions, SubjectOptions, PlanOptions):
    """How to evaluate.

    Attributes:
        classes: Names of the classes, in the order of the logits.
        judge: Another model with the same classes, for example one fine-tuned with FPA: the maps and the
            explained classes are those of the model, the curves and scores those of the judge.
        masks: bool [N, H, W], the pixels of the objects, for scores that need them; shapes, and folders with
            boxes or segmentations, have their own.

    """

    classes: Sequence[str] | None = field(default=None, metadata=PYTHON_ONLY)
    judge: "nn.Module | Engine | Opened | None" = field(default=None, metadata=PYTHON_ONLY)
    masks: Any = field(default=None, metadata=PYTHON_ONLY)


@dataclass(kw_only=True)
class AuditOptions(SubjectOptions, ProtocolOptions, TargetOptions, CurveOptions):
    """How to evaluate.

    Attributes:
        estimators: As for an evaluation, at least one signed and one unsigned; random masking is measured in
            any case. Default: the paper's ten, the model-free maps and the blurred twins.
        outputs: What is followed, as in an evaluation; the first is judged, by limits made for centred.
        masking: What removing a pixel means, as for an evaluation: the masking that is judged. Default: the
            first of `maskings`.
        maskings: Those that it is compared with: with the same maps they show whether the ranking of the
            estimators survives another masking. Without `masking` the first of them is judged. Several of a
            kind must differ in their settings, which are then part of their names.
        overwrite: Delete the earlier results in the folder and start afresh.

    """

    estimators: str | Iterable[Any] | Mapping[str, Any] = field(
        default=AUDITED, kw_only=False, metadata=read_as(tuple[str, ...])
    )
    outputs: str | Sequence[str] = field(default=("centred",), metadata=read_as(tuple[str, ...]))
    masking: Any = field(default=None, metadata=read_as(dict[str, Any] | str | None))
    maskings: Sequence[Any] = field(
        default=COMPARED_MASKINGS, metadata=read_as(tuple[dict[str, Any] | str, ...])
    )
    overwrite: bool = field(default=False, metadata=PYTHON_ONLY)
