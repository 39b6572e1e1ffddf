"""The loop of every evaluation: predict, explain, perturb, score and store, block after block.

A run of days survives a crash: run it again with the same folder and the blocks that are there are checked
against the images and kept. Data that can be indexed are addressed by number, so that any process can make
any block; a stream is read in order, and read again when it is resumed.
"""

import platform
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fpa import __version__
from fpa.data.looks import looks, same_images
from fpa.data.source import ImageBlock, ImageSource
from fpa.engine.engine import Engine
from fpa.errors import DamagedError, InputError
from fpa.evaluation.plan import Plan
from fpa.evaluation.result import Examples
from fpa.evaluation.shards import DESCRIPTION, EXAMPLES, FORMAT, EvaluationFolder, block_key, curve_columns
from fpa.explanation.explainer import maps_of
from fpa.explanation.raw import Task, problems
from fpa.files import clear_temporaries, folder_lock, write_arrays
from fpa.masking import fully_masked, noise_by_image
from fpa.models.saved import fingerprint
from fpa.perturbation.curves import curves_of, not_finite
from fpa.perturbation.features import features_of, ranks
from fpa.progress import Tell, telling
from fpa.scores.score import Block

_NOISY_COPIES = 15
_PLACES = 201
"""Places of the sorted importance scores that are kept."""


def evaluate_blocks(
    engine: Engine,
    source: ImageSource,
    plan: Plan,
    folder: Path | str,
    *,
    about: Mapping[str, Any] | None = None,
    examples: int = 0,
    block: int | None = None,
    overwrite: bool = False,
    progress: "bool | Tell" = True,
) -> dict[str, Any]:
    """Carry out a plan on all images of a source, block after block; returns what evaluation.json says.

    `about` is written into evaluation.json beside the plan (name, classes, data, ...). Images, maps or logits
    that are not finite are named, left out (NaN) and counted; the rest goes on. `examples` images are kept
    with their maps. With `overwrite` an evaluation that is there is thrown away, but not before it is known
    that the new one can start. The folder is locked meanwhile: another run into it is refused.
    """
    _check(plan, source, block)
    path = Path(folder)
    with folder_lock(path):
        if overwrite:
            EvaluationFolder(path).clear()
        return _Evaluating(engine, source, plan, path, examples).run(about or {}, block, progress)


def _check(plan: Plan, source: ImageSource, block: int | None) -> None:
    """Refuse, before any work, images that the plan cannot be carried out on."""
    if block is not None and block < 1:
        raise InputError(f"a block must have at least 1 image, got {block}")
    features_of(plan.features, source.first)
    if plan.needs_numbers:
        source.check_numbers()
    for name, estimator in plan.estimators.items():
        estimator.raw.check(name, source.numbers or range(source.count or 0), source.first.shape[1:])
    for score in plan.scores:
        if "masks" in score.needs and not source.has_masks:
            needs = f"the score {score.name} needs known masks of the objects"
            raise InputError(f"{needs}: {source.name} has none")


@dataclass
class _Evaluating:
    """One evaluation on its way."""

    engine: Engine
    source: ImageSource
    plan: Plan
    path: Path
    examples: int

    def run(self, more: Mapping[str, Any], block: int | None, progress: "bool | Tell") -> dict[str, Any]:
        engine, source, plan = self.engine, self.source, self.plan
        folder = EvaluationFolder(self.path)
        clear_temporaries(self.path)
        clear_temporaries(self.path / "blocks")
        asked = {"plan": plan.to_json(engine), "model": fingerprint(engine.model)}
        about, done = folder.about(), set(folder.blocks)
        if about is None and done:
            reason = f"no {DESCRIPTION} describes it"
            raise DamagedError({folder.block(number): reason for number in sorted(done)})
        if about is not None:
            folder.check_same(about, asked)
            if block not in (None, size := about["block"]):
                raise InputError(
                    f"{self.path} holds blocks of {size} images, not {block}: use another folder"
                )
        size = block or (block_size(engine, source.first) if about is None else about["block"])
        about = {**asked, **(about or {}), **more, "format": FORMAT, "block": size}
        about = {"images": None, "made_with": made_with(engine), **about}
        key, picker = block_key(about), ExamplePicker(self.examples, source.count)
        if source.count is not None:
            engine.expected_rows = max(engine.expected_rows, source.count * plan.passes)
        seen, pending = 0, list[_Pending]()
        with telling(source.count, progress) as tell, watched_by(engine, tell):

            def settle(most: int) -> None:
                while len(pending) > most:
                    if folder.about() is None:
                        folder.describe(about)
                    ready = pending.pop(0)
                    columns, values, notes = ready.fetched()
                    folder.write(ready.part.number, columns, values, notes, key)
                    for problem in notes["problems"]:
                        warnings.warn(f"{problem}: left out", stacklevel=2)
                    tell.advance(len(ready.part.indices))

            try:
                for part in source.blocks(size):
                    picker.look(part)
                    seen += len(part.indices)
                    if part.number in done and self._keeps(folder, part):
                        tell.skip(len(part.indices))
                    elif part.indices:
                        pending.append(self._compute(part))
                        # On CUDA the next block is queued before this one is waited for.
                        settle(1 if engine.device.type == "cuda" else 0)
                settle(0)
            except KeyboardInterrupt:
                settle(0)
                tell.line(f"interrupted: complete blocks are kept in {self.path}; run again to continue")
                raise
            if seen == 0:
                raise InputError("there are no images: the data are empty")
            if any(number * size >= seen + len(source.lost) for number in folder.blocks):
                raise InputError(
                    f"{self.path} holds blocks of more images than the {seen} given now: use another folder"
                )
            about |= {"images": seen, "made_with": {**about["made_with"], "forms": engine.forms_used}}
            folder.describe(about)
            picker.write(self.path, engine, source, plan)
            tell.line(f"peak memory: {engine.peak_memory / 2**30:.2f} GiB")
        return about

    def _compute(self, part: ImageBlock) -> "_Pending":
        """Predict, explain, perturb and score the images of a block."""
        engine, plan = self.engine, self.plan
        images = engine.images(part.images)
        logits, targets, truth = predicted(engine, images, part.labels)
        task = Task(engine, images, targets, part.indices, seed=plan.seed, masking=plan.masking)
        maps = maps_of(task, plan.estimators)
        shown = {name: each.label(name).text for name, each in plan.estimators.items()}
        how: dict[str, Any] = {"logits": logits, "features": plan.features, "labels": truth, "shown": shown}
        curves = curves_of(task, maps, plan.fractions, outputs=plan.outputs, **how)
        tasks = {name: replace(task, masking=masking) for name, masking in plan.maskings.items()}
        under = {
            name: curves_of(each, maps, plan.fractions, outputs=plan.outputs[:1], **how)[plan.outputs[0]]
            for name, each in tasks.items()
        }
        block = Block(task, part.labels, logits, plan.estimators, maps, curves=curves, masks=part.foreground)
        columns: dict[str, Tensor] = {"target": targets, "looks": looks(images)}
        first = curves[plan.outputs[0]]
        columns |= curve_columns(curves, under)
        values = {score.name: self._checked(score(block), score.name, len(images)) for score in plan.scores}
        return _Pending(
            part,
            columns=columns,
            values=values,
            importance={name: _sorted_sum(each) for name, each in maps.items()},
            bad=not_finite(images, maps, first),
            fractions=first.fractions.tolist(),
        )

    def _checked(self, values: Mapping[str, Tensor], score: str, count: int) -> dict[str, Tensor]:
        for name in self.plan.estimators:
            shape = list(values[name].shape) if name in values else "nothing"
            if shape != [count]:
                raise InputError(f"the score {score} must give [{count}] values for {name}, it gave {shape}")
        return {name: values[name].double() for name in self.plan.estimators}

    def _keeps(self, folder: EvaluationFolder, part: ImageBlock) -> bool:
        """Whether a block on disk can stay. It must be of these images; other labels are put into it."""
        stored = folder.columns(part.number, ("index", "label", "looks"))
        if "looks" not in stored:
            raise InputError(
                f"{folder.path} was written by Result.save and cannot be continued: use another folder"
            )
        if stored["index"].tolist() != part.indices:
            raise InputError(
                f"{folder.block(part.number)} was made of other images: use another folder or remove it"
            )
        if not same_images(torch.from_numpy(stored["looks"].copy()), looks(part.images)):
            raise InputError(
                f"{folder.path} holds an evaluation of other images, or of the same ones sized or normalised "
                "otherwise: use another folder or remove it"
            )
        labels = part.labels.numpy()
        if np.array_equal(stored["label"], labels):
            return True
        predicted(self.engine, self.engine.images(part.images), part.labels)  # refuses labels that cannot be
        plain = {"logit", "probability", "margin"} >= set(self.plan.outputs)
        if not plain or len(self.plan.scores) > 1:  # outputs and scores other than A may depend on the labels
            return False
        folder.relabel(part.number, labels)
        return True


@dataclass
class _Pending:
    """A block on its way from the device to the disk."""

    part: ImageBlock
    columns: dict[str, Tensor]
    values: dict[str, dict[str, Tensor]]
    importance: dict[str, Tensor]
    bad: Mapping[tuple[str, str], Tensor]
    fractions: list[float]
    done: Any = None

    def __post_init__(self) -> None:
        # The copies are queued behind the block's own work and waited for when they are stored.
        def leaving(tensors: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
            return {name: each.to("cpu", non_blocking=True) for name, each in tensors.items()}

        device = self.columns["target"].device
        self.columns, self.importance = leaving(self.columns), leaving(self.importance)
        self.bad = leaving(self.bad)
        self.values = {score: leaving(by_name) for score, by_name in self.values.items()}
        if device.type == "cuda":
            self.done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.done.record(torch.cuda.current_stream(device))

    def fetched(self) -> tuple[dict[str, NDArray[Any]], dict[str, dict[str, NDArray[Any]]], dict[str, Any]]:
        """Columns, scores and notes, once they have arrived."""
        if self.done is not None:
            self.done.synchronize()
        columns = {"index": np.array(self.part.indices, dtype=np.int64), "label": self.part.labels.numpy()}
        columns |= {name: each.contiguous().numpy() for name, each in self.columns.items()}
        values = {key: {name: each.numpy() for name, each in by.items()} for key, by in self.values.items()}
        importance = {name: each.tolist() for name, each in self.importance.items()}
        notes = {"problems": problems(self.bad, self.part.indices), "fractions": self.fractions}
        return columns, values, notes | {"importance": importance}


def predicted(engine: Engine, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The logits, the classes predicted and the true ones; where the label is -1, unknown, the predicted."""
    logits = engine.predict(images)
    targets = engine.explained(logits)
    known = engine.explained(logits, labels.clamp(min=0), "labels")
    return logits, targets, torch.where(labels.to(known.device) >= 0, known, targets)


def _sorted_sum(maps: Tensor) -> Tensor:
    """How many of the maps [N, H, W] are finite, then the sum of their scores at places of the LIF order."""
    values = maps.flatten(1).double() if maps.device.type != "mps" else maps.flatten(1)
    finite = values.isfinite().all(1, keepdim=True)
    places = torch.linspace(0, values.shape[1] - 1, min(values.shape[1], _PLACES)).round().long()
    ordered = values.where(finite, 0).sort(1).values[:, places.to(values.device, non_blocking=True)]
    return torch.cat([finite.sum(0).to(values.dtype), ordered.sum(0)])


def block_size(engine: Engine, images: Tensor) -> int:
    """Images in a block: a power of two, small enough that its noisy copies take little memory."""
    # A block holds at most this much of the noise of SmoothGrad, and at most this many images.
    room, most = (256 << 20, 1024) if engine.device.type == "cuda" else (64 << 20, 32)
    fits = room // (4 * _NOISY_COPIES * images[0].numel())
    return 1 << (max(1, min(most, fits)).bit_length() - 1)


def made_with(engine: Engine) -> dict[str, Any]:
    """What a result may depend on beside its plan."""
    device = engine.device
    versions = {"fpa": __version__, "torch": torch.__version__, "numpy": np.__version__}
    return {
        "versions": versions | {"python": platform.python_version()},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
    }


@contextmanager
def watched_by(engine: Engine, tell: Tell) -> Iterator[None]:
    """Tell which estimator the engine is at."""
    before = engine.watch
    engine.watch = tell.at
    try:
        yield
    finally:
        engine.watch = before


class ExamplePicker:
    """Keeps a few of the images that come by: evenly over the data if their number is known."""

    def __init__(self, count: int, total: int | None) -> None:
        total = count if total is None else total
        places = np.linspace(0, max(total - 1, 0), min(count, total)).round().astype(int)
        self.places, self.seen = set(places.tolist()), 0
        self.kept: list[ImageBlock] = []

    def look(self, block: ImageBlock) -> None:
        """Keep what was chosen of a block."""
        rows = [row for row in range(len(block.indices)) if self.seen + row in self.places]
        self.seen += len(block.indices)
        if rows:
            mask = None if block.foreground is None else block.foreground[rows]
            indices = [block.indices[row] for row in rows]
            self.kept.append(ImageBlock(block.number, block.images[rows], block.labels[rows], indices, mask))

    def write(self, folder: Path, engine: Engine, source: ImageSource, plan: Plan) -> None:
        """Write the examples, unless the same ones are there."""
        stored = Examples.read(folder / EXAMPLES)
        indices = [index for part in self.kept for index in part.indices]
        labels = [label for part in self.kept for label in part.labels.tolist()]
        same = stored and (stored.indices.tolist(), stored.labels.tolist()) == (indices, labels)
        if self.kept and not same:
            write_arrays(folder / EXAMPLES, make_examples(self.kept, engine, source, plan).to_arrays())


def make_examples(kept: list[ImageBlock], engine: Engine, source: ImageSource, plan: Plan) -> Examples:
    """The images with the maps their curves are made of, and what a removed pixel looks like."""
    images = engine.images(torch.cat([part.images for part in kept]))
    indices = [index for part in kept for index in part.indices]
    targets = engine.predict(images).argmax(1)
    task = Task(engine, images, targets, indices, seed=plan.seed, masking=plan.masking)
    maps = maps_of(task, plan.estimators)
    fill = fully_masked(plan.masking, images, noise_by_image(plan.masking, images, plan.seed, indices))
    masks = [part.foreground for part in kept if part.foreground is not None]

    def placed(values: Tensor) -> NDArray[np.int32]:
        places = ranks(values, seed=plan.seed, indices=indices, features=plan.features)
        return places.cpu().numpy().astype(np.int32)

    return Examples(
        images=source.pictures(images.cpu()),
        indices=np.asarray(indices, dtype=np.int64),
        labels=torch.cat([part.labels for part in kept]).numpy(),
        targets=targets.cpu().numpy(),
        maps={name: values.float().cpu().numpy() for name, values in maps.items()},
        ranks={name: placed(values) for name, values in maps.items()},
        fill=source.pictures(fill.cpu(), like=images.cpu()),
        foreground=torch.cat(masks).numpy() if masks else None,
    )
