"""From a model and images to an answer: `evaluate`."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fpa.engine.engine import Engine
from fpa.errors import InputError, warn
from fpa.evaluation.announcing import announce
from fpa.evaluation.keywords import with_options
from fpa.evaluation.loop import evaluate_blocks
from fpa.evaluation.options import EvaluateOptions
from fpa.evaluation.plan import plan_of
from fpa.evaluation.quick import quickened
from fpa.evaluation.result import Result
from fpa.evaluation.shards import EvaluationFolder, load_result, read_evaluation
from fpa.evaluation.sharing import Share, share_of, wait_until_complete
from fpa.evaluation.subject import Case, opened, prepare
from fpa.files import temporary_folder
from fpa.models.hubs import Opened
from fpa.notes import Kind, Note, Severity
from fpa.progress import Tell, telling
from fpa.showing import clause
from fpa.values import checked


@with_options(EvaluateOptions)
@checked
@torch.inference_mode(False)
def evaluate(model: nn.Module | Engine | Opened, data: Any, options: EvaluateOptions) -> Result:
    """Which explanations describe this model? Explain, perturb and score all images.

    Args:
        model: Any image classifier, what `fpa.open_model` returns, or an `fpa.Engine`. It may be wrapped,
            compiled, in half precision or return an object with `.logits`, and is left exactly as it was.
        data: A tensor, (images, labels), a loader, a data set, the name of a data set, ...; see
            `fpa.image_source`. Labels are the numbers of the model's outputs; without them only the accuracy
            is missing. Where the data have other classes than the model, their names or `class_index` decide.
        options: Each is a keyword.

    >>> images = torch.randn(8, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    >>> result = evaluate(net, images, ["ig_sum", "vg_abs"], points=5, progress=False)
    >>> sorted(result.fidelity), result.accuracy
    (['ig_sum', 'vg_abs'], None)

    """
    network, options = opened(model, quickened(options))
    case = prepare(
        network,
        data,
        plan_of(options),
        options,
        normalisation=options.normalisation,
        classes=options.classes,
        masks=options.masks,
        judge=options.judge,
    )
    doubts = [note for note in case.notes if note.severity is not Severity.INFO]
    for note in (*uncertain_labels(case), *doubts):
        warn(clause(note))
    share = share_of(options.part, wait=options.wait, device=options.device)
    return carry_out(
        case, options.folder, examples=options.examples, progress=options.progress, share=share
    ).result()


def uncertain_labels(case: Case) -> list[Note]:
    """What a caller from Python is told about labels: neither that there are none nor that they are in order.

    Whoever brings images knows that; a person who typed the name of a folder may not.
    """
    note = case.label_note
    return [] if note is None or note.kind in (Kind.NO_LABELS, Kind.ORDER_ASSUMED) else [note]


@dataclass(frozen=True)
class CarriedOut:
    """An evaluation as far as this process could bring it."""

    folder: Path
    share: Share
    loaded: Result | None
    """The result; None where another process, or a later command, puts it together."""
    with_scores: bool = True

    def result(self) -> Result:
        """The result, also where other processes have made parts of it; of a part, what is there so far."""
        if self.loaded is not None:
            return self.loaded
        stored = EvaluationFolder(self.folder)
        if not self.share.is_part:
            wait_until_complete(stored, self.share)
        elif not stored.blocks:
            part = f"part {self.share.in_words} has no blocks, and the others have made none yet"
            raise InputError(f"{self.folder} holds no results yet: {part}")
        return _loaded(self.folder, self.with_scores)


def carry_out(
    case: Case,
    folder: Path | str | None,
    *,
    examples: int = 0,
    overwrite: bool = False,
    with_scores: bool = True,
    command: str | None = None,
    progress: bool | Tell = True,
    share: Share | None = None,
) -> CarriedOut:
    """Carry out a plan on a model and its images: the one way from these to a result, whoever asks.

    What is done stays in the `folder`, and what is there is continued; without one nothing stays. Without
    `with_scores` the result has curves alone, of which there may be too few to score. `command` is what to
    type for the same again. `share` is this process's part of the blocks, by default all of them.
    """
    share = share or Share()
    if not folder and share.size > 1:
        raise InputError("processes share an evaluation by its folder: give one, or leave out part")
    with (
        temporary_folder() if not folder else nullcontext(Path(folder)) as place,
        telling(case.source.count, progress) as tell,
    ):
        announce(case, None if overwrite else folder, tell, examples=examples)
        evaluate_blocks(
            case.subject.engine,
            case.source,
            case.plan,
            place,
            subject=case.facts(command),
            examples=examples,
            judge=None if case.judge is None else case.judge.engine,
            overwrite=overwrite,
            progress=tell,
            share=share,
        )
        loaded = _loaded(place, with_scores) if share.finishes else None
    return CarriedOut(place, share, loaded, with_scores)


def _loaded(folder: Path, with_scores: bool) -> Result:
    if with_scores:
        return load_result(folder)
    evaluation, description = read_evaluation(folder)
    return Result.unscored(description.subject.name, evaluation, description)
