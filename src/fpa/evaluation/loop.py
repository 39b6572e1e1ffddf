"""The loop of every evaluation: predict, explain, perturb, score and store, block after block.

A run of days survives a crash: run it again with the same folder and the blocks that are there are checked
against the images and kept. Data that can be indexed are addressed by number, so that any process can make
any block; a stream is read in order, and read again when it is resumed.
"""

import platform
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fpa import __version__
from fpa.data import ImageBlock, ImageSource, looks, same_images
from fpa.engine.devices import sent
from fpa.engine.engine import Engine
from fpa.engine.outputs import OUTPUTS
from fpa.engine.tasks import problems
from fpa.errors import InputError, at_least, warn
from fpa.evaluation.description import Description, Origin, SubjectFacts
from fpa.evaluation.explained import answered, looked_at
from fpa.evaluation.own_code import note_calls
from fpa.evaluation.plan import Plan
from fpa.evaluation.selection import ExamplePicker, evenly
from fpa.evaluation.shards import DESCRIPTION, EvaluationFolder, StoredBlock, curve_columns
from fpa.explanation import maps_of, raw_maps_of
from fpa.files import clear_temporaries, folder_lock
from fpa.models.saved import fingerprint
from fpa.notes import Kind, Note, Severity
from fpa.perturbation import Curves, curves_of, features_of, not_finite, segment_count
from fpa.progress import Tell, telling
from fpa.scores.score import Block
from fpa.showing import clause

_AHEAD = {"cuda": 1}  # blocks that may wait to be fetched and stored while the next one is computed
_NOISY_COPIES = 15
_PLACES = 201
"""Places of the sorted importance scores that are kept."""


def evaluate_blocks(
    engine: Engine,
    source: ImageSource,
    plan: Plan,
    folder: Path | str,
    *,
    subject: SubjectFacts | None = None,
    examples: int = 0,
    block: int | None = None,
    judge: Engine | None = None,
    overwrite: bool = False,
    progress: "bool | Tell" = True,
) -> Description:
    """Carry out a plan on all images of a source, block after block; returns what evaluation.json says.

    `subject` is what evaluation.json says of the model and the images, for people. Images, maps or logits
    that are not finite are named, left out (NaN) and counted; the rest goes on. `examples` images are kept
    with their maps. A `judge` is another model whose outputs the curves and scores are of: the maps, and the
    classes explained, stay those of the engine. With `overwrite` an evaluation that is there is thrown away,
    but not before it is known that the new one can start. The folder is locked meanwhile: another run into it
    is refused.
    """
    at_least("the number of images in a block", block, 1)
    plan, unsigned = looked_at(suited(plan, source, judge or engine), engine, source)
    stored = EvaluationFolder(folder)
    with folder_lock(stored.path), ExitStack() as after:
        if overwrite:
            stored.clear()
        for place in (stored.path, stored.path / "blocks"):
            clear_temporaries(place)
        judging, weights = judge or engine, fingerprint(engine.model)
        if judge is not None:
            weights += f" judged by {fingerprint(judge.model)}"
        origin = Origin(plan.stored(engine, judge), weights)
        after.callback(note_calls, plan)
        size_before = stored.images_a_block(origin)
        size = block or size_before or block_size(engine, source.first)
        if size_before not in (None, size):
            held = f"{folder} holds blocks of {size_before} images, not {block}"
            raise InputError(f"{held}: use another folder")
        described = Description(
            plan=origin.plan,
            model=origin.model,
            block=size,
            images=None,
            subject=subject or SubjectFacts(),
            made_with=made_with(engine.device),
            scores_left_out=plan.left_out or None,
        )
        before = stored.description()
        if before is not None:
            described = described.continuing(before)
        done, picker = set(stored.blocks), ExamplePicker(examples, source.count)
        few = evenly(plan.score_images, source.count)
        if source.count is not None:
            for each in (engine, judging):
                each.expected_rows = max(each.expected_rows, source.count * plan.passes)
        tell = after.enter_context(telling(source.count, progress))
        left = None if source.count is None else max(source.count - size * len(done), 0)
        for note in [*(plan.work(left) if left != 0 else ()), *_decided(plan, unsigned)]:
            tell.line(clause(note))

        def compile_seconds() -> float:
            return sum(each.compile_seconds for each in {engine, judging})

        compiled = compile_seconds()
        writer = after.enter_context(ThreadPoolExecutor(1))
        pending: deque[tuple[ImageBlock, Future[list[Note]]]] = deque()

        def store(number: int, fetch: Callable[[], StoredBlock]) -> list[Note]:
            results = fetch()
            if not (stored.path / DESCRIPTION).exists():
                stored.describe(described)
            stored.write(number, results, described)
            return [Note.from_json(each) for each in results.notes["problems"]]

        def settle(most: int) -> None:
            while pending and (len(pending) > most or pending[0][1].done()):
                part, writing = pending.popleft()
                tell.compiling = compile_seconds() - compiled
                for problem in writing.result():
                    warn(f"{clause(problem)}: left out")
                tell.advance(len(part.indices))

        def watch(name: str) -> None:
            # A block counts when it is stored, not when the next one is computed too. One that could not be
            # stored waits for the loop: the engine would take a MemoryError for its own, and go on without.
            if not any(writing.done() and writing.exception() for _, writing in pending):
                settle(len(pending))
            tell.at(name)

        for each in {engine, judging}:
            after.callback(setattr, each, "watch", each.watch)
            each.watch = watch
        try:
            for part in source.blocks(size):
                picker.look(part)
                if part.number in done and _keeps(stored, part, described, engine, plan):
                    tell.skip(len(part.indices))
                elif part.indices:
                    fetch = _compute(part, engine, plan, judging, _chosen(part, size, few))
                    pending.append((part, writer.submit(store, part.number, fetch)))
                    settle(_AHEAD.get(engine.device.type, 0))
            settle(0)
        except KeyboardInterrupt:
            settle(0)
            tell.line(f"interrupted: complete blocks are kept in {folder}; run again to continue")
            raise
        if picker.seen == 0:
            raise InputError("there are no images: the data are empty")
        if any(number * size >= picker.seen + len(source.lost) for number in stored.blocks):
            held = f"{folder} holds blocks of more images than the {picker.seen} given now"
            raise InputError(f"{held}: use another folder")
        described = replace(described, images=picker.seen)
        described = described.with_forms({**judging.forms_used, **engine.forms_used})
        stored.describe(described)
        picker.write(stored.path, engine, source, plan, described.origin)
        tell.line(f"peak memory: {engine.peak_memory / 2**30:.2f} GiB")
    return described


def _decided(plan: Plan, unsigned: Sequence[str]) -> list[Note]:
    """What was decided about a plan: estimators that turned out unsigned, scores that cannot be computed."""
    return [
        *(Note(Kind.TAKEN_FOR_UNSIGNED, Severity.INFO, {"estimator": name}) for name in unsigned),
        *(
            Note(Kind.SCORE_LEFT_OUT, Severity.WARNING, {"score": score, "reason": reason})
            for score, reason in plan.left_out.items()
        ),
    ]


def suited(plan: Plan, source: ImageSource, judge: Engine | None = None) -> Plan:
    """The plan as it can be carried out on these images, or the error that says why it cannot, before work.

    Scores that `all` stands for are left out where these images, or the model that judges, do not allow them.
    """
    plan.check_features(features_of(plan.features, source.first))
    if any(estimator.raw.needs_numbers for estimator in plan.estimators.values()):
        source.check_numbers()
    for name, estimator in plan.estimators.items():
        estimator.raw.check(name, source.numbers or range(source.count or 0), source.first.shape[1:])
    card = getattr(judge.model, "card", None) if judge else None
    augmentation = getattr(card, "augmentation", "")
    facts: dict[str, Any] = {"masks": source.has_masks, "labels": source.has_labels, "data": source.name}
    return plan.suited(plan.given(**facts, augmentation=augmentation))


def _compute(
    part: ImageBlock, engine: Engine, plan: Plan, judge: Engine, chosen: Sequence[int]
) -> Callable[[], StoredBlock]:
    """Predict, explain, perturb and score the images of a block; what is returned waits for the results.

    Scores that explain again get the rows that are `chosen`.
    """
    images = engine.images(part.images)
    logits, targets, said, truth = answered(engine, images, part.labels, plan, part.indices)
    task = plan.task(engine, images, targets, part.indices)
    raws = None
    if any("raw maps" in score.needs for score in plan.scores):
        raws = raw_maps_of(task, plan.estimators)
        maps = {name: plan.estimators[name].reduce(raw) for name, raw in raws.items()}
    else:
        maps = maps_of(task, plan.estimators)
    explained, sure = task, logits.float().softmax(1).amax(1)
    if judge is not engine:
        task, logits = replace(task, engine=judge), judge.predict(images)
    shown = {name: each.label(name).text for name, each in plan.estimators.items()}
    # Segments are found once; pixels and patches are made anew where they are needed.
    features = features_of(plan.features, images) if segment_count(plan.features) else plan.features
    how: dict[str, Any] = {"logits": logits, "features": features, "labels": truth, "shown": shown}
    followed = curves_of(task, maps, plan.fractions, outputs=plan.followed, **how)
    curves = {name: followed[name] for name in plan.outputs}
    first, under = plan.outputs[0], dict[str, Curves]()
    varied = {name: maps[name] for name in plan.varied}
    for name, masking in plan.maskings.items():
        other = replace(task, masking=masking)
        shares = plan.fractions_under(masking)
        under[name] = curves_of(other, varied, shares, outputs=[first], **how)[first]
    more: dict[str, Any] = {"curves": followed, "masks": part.foreground, "explained": explained}
    more |= {"fractions": plan.fractions, "features": features, "known_raw_maps": raws}
    block = Block(task, part.labels, logits, plan.estimators, maps, **more)
    scores = _scored(plan, block, chosen)
    fractions, bad = curves[first].fractions, not_finite(images, maps, curves[first])

    # The copies are queued behind the block's own work and waited for when they are stored.
    def leaving(tensors: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
        return {name: each.to("cpu", non_blocking=True) for name, each in tensors.items()}

    seen = {"target": targets, "confidence": sure, "looks": looks(images)}
    seen |= {} if plan.targets == "predicted" else {"predicted": said}
    columns = leaving(seen | curve_columns(curves, under))
    sums = leaving({name: _sorted_sum(each) for name, each in maps.items()})
    bad, scores = leaving(bad), leaving(scores)
    cuda = engine.device.type == "cuda"
    arrived = torch.cuda.current_stream(engine.device).record_event() if cuda else None

    def fetched() -> StoredBlock:
        if arrived is not None:
            arrived.synchronize()
        notes = {
            "problems": [note.to_json() for note in problems(bad, part.indices)],
            "fractions": fractions.tolist(),
            "importance": {name: each.tolist() for name, each in sums.items()},
            "under": {name: each.fractions.tolist() for name, each in under.items()},
        }
        numbers = {"index": np.array(part.indices, dtype=np.int64), "label": part.labels.numpy()}
        arrays = {name: each.contiguous().numpy() for name, each in columns.items()}
        return StoredBlock(numbers | arrays, {key: each.numpy() for key, each in scores.items()}, notes)

    return fetched


def _scored(plan: Plan, block: Block, chosen: Sequence[int]) -> dict[tuple[str, str], Tensor]:
    """The values [N] by score and estimator, or the error that says which are missing.

    Scores that explain again are computed for the `chosen` rows alone, and NaN elsewhere, as all are where
    the image or the map is not finite.
    """
    scored = dict[tuple[str, str], Tensor]()
    lost = ~block.task.images.isfinite().flatten(1).all(1)
    bad = {name: lost | ~maps.isfinite().flatten(1).all(1) for name, maps in block.maps.items()}
    explaining = any("explain" in score.needs for score in plan.scores)
    few = block.at(chosen) if explaining and 0 < len(chosen) < len(block.labels) else block
    for score in plan.scores:
        part = few if "explain" in score.needs else block
        count = len(chosen) if "explain" in score.needs else len(block.labels)
        values = score(part) if count else {}
        for name in block.estimators:
            whole = block.logits.new_full((len(block.labels),), torch.nan, dtype=torch.float64)
            shape = list(values[name].shape) if name in values else "nothing"
            if count and shape != [count]:
                needed = f"must give [{count}] values for {name}"
                raise InputError(f"the score {score.name} {needed}, but gave {shape}")
            if count == len(whole):
                whole = values[name].double()
            elif count:
                whole[[*chosen]] = values[name].double().to(whole.device)
            scored[score.name, name] = whole.masked_fill(bad[name].to(whole.device), torch.nan)
    return scored


def _keeps(
    folder: EvaluationFolder, part: ImageBlock, description: Description, engine: Engine, plan: Plan
) -> bool:
    """Whether a block on disk can stay. It must be of these images; other labels are put into it."""
    stored = folder.read_block(part.number, description)
    columns, labels = stored.columns, part.labels.numpy()
    wrong = None
    if "looks" not in columns:
        wrong = f"{folder.path} was written by Result.save and cannot be continued"
    elif columns["index"].tolist() != part.indices:
        wrong = f"{folder.file(part.number)} was made from other images"
    elif not same_images(columns["looks"].copy(), looks(part.images)):
        other = "of other images, or of the same images at another size or normalisation"
        wrong = f"{folder.path} holds an evaluation {other}"
    if wrong is not None:
        raise InputError(f"{wrong}: use another folder or remove it")
    if np.array_equal(columns["label"], labels):
        return True
    answered(engine, engine.images(part.images), part.labels, plan, part.indices)  # refuses impossible labels
    # outputs and scores other than A may depend on the labels
    by_label = any(OUTPUTS[name].uses_labels for name in plan.outputs)
    if by_label or len(plan.scores) > 1 or plan.targets == "label":
        return False
    columns["label"] = labels
    folder.write(part.number, stored, description)
    return True


def _sorted_sum(maps: Tensor) -> Tensor:
    """How many of the maps [N, H, W] are finite, then the sum of their scores at places of the LIF order."""
    values = maps.flatten(1).double() if maps.device.type != "mps" else maps.flatten(1)
    finite = values.isfinite().all(1, keepdim=True)
    places = torch.linspace(0, values.shape[1] - 1, min(values.shape[1], _PLACES)).round().long()
    ordered = values.where(finite, 0).sort(1).values[:, sent(places, values.device)]
    return torch.cat([finite.sum(0).to(values.dtype), ordered.sum(0)])


def block_size(engine: Engine, images: Tensor) -> int:
    """Images in a block: a power of two, small enough that its noisy copies take little memory."""
    # A block holds at most this much of the noise of SmoothGrad, and at most this many images.
    room, most = 64 << 20, 32
    if engine.device.type == "cuda":
        memory = torch.cuda.get_device_properties(engine.device).total_memory
        room, most = min(max(memory >> 6, 256 << 20), 2 << 30), 1024
    fits = room // (4 * _NOISY_COPIES * images[0].numel())
    return 1 << (max(1, min(most, fits)).bit_length() - 1)


def made_with(device: torch.device) -> dict[str, Any]:
    """What a result may depend on beside its plan."""
    versions = {"fpa": __version__, "torch": torch.__version__, "numpy": np.__version__}
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return {"versions": versions | {"python": platform.python_version()}, "device": name}


def _chosen(part: ImageBlock, size: int, places: set[int]) -> list[int]:
    """The rows of a block that are at these places; files that could not be read move those after them."""
    return [row for row in range(len(part.indices)) if part.number * size + row in places]
