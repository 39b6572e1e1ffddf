"""From the images of one block to its results: predict, explain, perturb and score.

Nothing here waits for the device: the results of a block are fetched while the next one is computed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fpa.data import ImageBlock, digests, sketches
from fpa.engine.devices import sent
from fpa.engine.engine import Engine
from fpa.engine.lending import model_lent, shared_results_kept
from fpa.engine.tasks import Task, problems
from fpa.errors import InputError
from fpa.evaluation.plan import Plan
from fpa.evaluation.stored_block import (
    BlockNotes,
    StoredBlock,
    curve_columns,
    fact_column,
    unit_column,
)
from fpa.evaluation.targets import Classes, classes_of
from fpa.explanation import maps_of, raw_maps_of
from fpa.models.saved import fingerprint
from fpa.perturbation import Curves, curves_of, features_of, not_finite, segment_count
from fpa.perturbation.features import Features
from fpa.scores.score import Block, Score
from fpa.values import is_fpas

K = TypeVar("K")

_PLACES = 201
"""Places of the sorted importance scores that are kept."""


@dataclass(frozen=True)
class Engines:
    """The model that is explained, and the one whose outputs the curves are of: mostly the same."""

    explaining: Engine
    judge: Engine | None = None

    @property
    def judging(self) -> Engine:
        """The one whose outputs the curves and scores are of."""
        return self.judge or self.explaining

    @property
    def distinct(self) -> set[Engine]:
        """Both, each once."""
        return {self.explaining, self.judging}

    @property
    def named(self) -> dict[str, Engine]:
        """Both by what they are, the judge only where it is another."""
        judge = {} if self.judge is None else {"judge": self.judge}
        return {"model": self.explaining, **judge}

    @property
    def weights(self) -> str:
        """The fingerprint of what the numbers come from."""
        own = fingerprint(self.explaining.model)
        return own if self.judge is None else f"{own} judged by {fingerprint(self.judge.model)}"

    @property
    def compile_seconds(self) -> float:
        """Spent on compiling, so far."""
        return sum(engine.compile_seconds for engine in self.distinct)

    @property
    def forms_used(self) -> dict[str, str]:
        """The arithmetic of each kind of pass."""
        return {**self.judging.forms_used, **self.explaining.forms_used}

    def expect(self, rows: int) -> None:
        """Say how many passes are coming: whether compiling pays depends on it."""
        for engine in self.distinct:
            engine.expected_rows = max(engine.expected_rows, rows)


@dataclass(frozen=True)
class ComputedBlock:
    """The results of a block on their way from the device; `fetched` waits for them."""

    images: ImageBlock
    columns: Mapping[str, Tensor]
    """[N] or [N, K], by the column they are stored in."""
    scores: Mapping[tuple[str, str], Tensor]
    """[N], by score and estimator."""
    importance: Mapping[str, Tensor]
    """By estimator, see `_sorted_sum`."""
    not_finite: Mapping[tuple[str, str], Tensor]
    """bool [N], by what is not finite and whose it is."""
    fractions: Tensor
    fractions_under: Mapping[str, Tensor]
    """By further protocol."""
    arrived: torch.cuda.Event | None
    """Passed when all copies are there; None where there was nothing to copy."""

    def fetched(self) -> StoredBlock:
        """The results as they are stored, once they have arrived."""
        if self.arrived is not None:
            self.arrived.synchronize()
        columns: dict[str, NDArray[np.generic]] = {
            "index": np.array(self.images.indices, dtype=np.int64),
            "label": self.images.labels.numpy(),
            # Pinned or not, the copies are whole by now; curves may still be views of a larger tensor.
            **{name: values.contiguous().numpy() for name, values in self.columns.items()},
        }
        # Here, in the thread that writes: hashing takes the processor, and nothing waits for it.
        if self.images.exact:
            columns["digest"] = digests(self.images.images).numpy()
        if self.images.foreground is not None:
            columns["mask_digest"] = digests(self.images.foreground).numpy()
        notes = BlockNotes(
            left_out=problems(self.not_finite, self.images.indices),
            fractions=self.fractions.tolist(),
            importance={name: sums.tolist() for name, sums in self.importance.items()},
            under={name: fractions.tolist() for name, fractions in self.fractions_under.items()},
        )
        return StoredBlock(columns, {key: values.numpy() for key, values in self.scores.items()}, notes)


def compute_block(
    block: ImageBlock, engines: Engines, plan: Plan, rows_explained_again: Sequence[int]
) -> ComputedBlock:
    """Predict, explain, perturb and score the images of a block.

    Scores that explain again are computed for `rows_explained_again` only.
    """
    engine = engines.explaining
    images = engine.images(block.images)
    # Classes and maps are those of the model explained, whoever judges.
    classes = classes_of(engine, images, block.labels, plan, block.indices)
    explaining = plan.task(engine, images, classes.explained, block.indices, maker=block.maker)
    maps, raw_maps = _maps(explaining, plan)
    judging = explaining
    logits = classes.logits
    if engines.judging is not engine:
        judging = replace(explaining, engine=engines.judging)
        logits = engines.judging.predict(images)
    # Segments are found once; pixels and patches are made anew where they are needed.
    features = features_of(plan.features, images) if segment_count(plan.features) else plan.features
    perturbed = _Perturbed(judging, plan, maps, logits=logits, classes=classes.true, features=features)
    followed = perturbed.curves()
    under = perturbed.by_further_protocols()
    known = Block(
        judging,
        block.labels,
        logits,
        plan.estimators,
        maps,
        curves=followed,
        masks=block.foreground,
        fractions=plan.fractions,
        features=features,
        explained=explaining,
        known_raw_maps=raw_maps,
    )
    scores = _scores(plan, known, rows_explained_again)
    curves = {output: followed[output] for output in plan.outputs}
    scored_curves = curves[plan.outputs[0]]
    own_features = {name for name, each in plan.protocols.items() if each.features != plan.features}
    columns = _columns(images, classes, plan) | curve_columns(curves, under, own_features)
    columns |= _units(plan, known) | _facts(plan, known)
    return ComputedBlock(
        images=block,
        columns=_leaving(columns),
        scores=_leaving(scores),
        importance=_leaving({name: _sorted_sum(values) for name, values in maps.items()}),
        not_finite=_leaving(not_finite(images, maps, scored_curves)),
        fractions=scored_curves.fractions,
        fractions_under={name: each.fractions for name, each in under.items()},
        arrived=_event(engine.device),
    )


def _maps(task: Task, plan: Plan) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
    """The maps [N, H, W] of every estimator, and the raw maps [N, C, H, W] if a score needs them.

    Raw maps of all estimators at once take much memory: where none are needed, each is reduced when made.
    """
    if not any("raw maps" in score.needs for score in plan.scores):
        return maps_of(task, plan.estimators), None
    raw_maps = raw_maps_of(task, plan.estimators)
    maps = {name: plan.estimators[name].reduce(raw_map) for name, raw_map in raw_maps.items()}
    return maps, raw_maps


@dataclass(frozen=True)
class _Perturbed:
    """The images of a block with pixels removed along its maps."""

    task: Task
    plan: Plan
    maps: Mapping[str, Tensor]
    logits: Tensor
    """[N, classes], of the unmasked images."""
    classes: Tensor
    """[N]: the true ones."""
    features: Features

    def curves(self) -> dict[str, Curves]:
        """By output, those that scores need besides included."""
        return self._run(self.task, self.maps, self.plan.fractions, self.plan.followed, self.features)

    def by_further_protocols(self) -> dict[str, Curves]:
        """By protocol, the curves of the output that is scored."""
        # What explanations must beat is measured by the plan's own protocol alone: it ranks nothing.
        maps = {name: self.maps[name] for name in self.plan.varied}
        output = self.plan.outputs[0]
        found = {self.plan.features: self.features}
        curves = {}
        for name, protocol in self.plan.protocols.items():
            # Several maskings may remove the same segments, which take long to find.
            if protocol.features not in found:
                found[protocol.features] = features_of(protocol.features, self.task.images)
            task = replace(self.task, masking=protocol.masking)
            fractions = self.plan.fractions_under(protocol.masking)
            curves[name] = self._run(task, maps, fractions, [output], found[protocol.features])[output]
        return curves

    def _run(
        self,
        task: Task,
        maps: Mapping[str, Tensor],
        fractions: Sequence[float],
        outputs: Sequence[str],
        features: Features,
    ) -> dict[str, Curves]:
        return curves_of(
            task,
            maps,
            fractions,
            logits=self.logits,
            labels=self.classes,
            features=features,
            outputs=outputs,
            shown={name: each.label(name).text for name, each in self.plan.estimators.items()},
        )


def _scores(plan: Plan, block: Block, rows_explained_again: Sequence[int]) -> dict[tuple[str, str], Tensor]:
    """The values [N] by score and estimator, or the error that says which are missing.

    They are NaN where the image or the map is not finite, and those of scores that explain again wherever
    the image is not one of these rows.
    """
    images = len(block.labels)
    # Flags on the device, not rows: choosing rows would wait for it.
    lost = ~block.task.images.isfinite().flatten(1).all(1)
    bad = {name: lost | ~maps.isfinite().flatten(1).all(1) for name, maps in block.maps.items()}
    explaining = any("explain" in score.needs for score in plan.scores)
    few = block
    if explaining and 0 < len(rows_explained_again) < images:
        few = block.at(rows_explained_again)
    found: dict[tuple[str, str], Tensor] = {}
    for score in plan.scores:
        again = "explain" in score.needs
        count = len(rows_explained_again) if again else images
        values = _values(score, few if again else block, count) if count else {}
        for name in block.estimators:
            # float64, as sums over many images are made of these
            if count == images:
                whole = values[name].double()
            else:
                whole = block.logits.new_full((images,), torch.nan, dtype=torch.float64)
                if count:
                    whole[[*rows_explained_again]] = values[name].double().to(whole.device)
            found[score.name, name] = whole.masked_fill(bad[name].to(whole.device), torch.nan)
    return found


def _values(score: Score, block: Block, count: int) -> Mapping[str, Tensor]:
    """The values [count] that a score gives for every estimator."""
    values = score(block) if is_fpas(score) else _values_of_users_own(score, block)
    for name in block.estimators:
        shape = list(values[name].shape) if name in values else "nothing"
        if shape != [count]:
            needed = f"must give [{count}] values for {name}"
            raise InputError(f"the score {score.name} {needed}, but gave {shape}")
    return values


def _values_of_users_own(score: Score, block: Block) -> Mapping[str, Tensor]:
    """The values of a score that may work in place: on copies, and it must leave alone what is shared."""
    name = f"the score {score.name}"
    with shared_results_kept(block._shared, name), model_lent(block.task.engine, name):
        return score(block.lent())


def _sorted_sum(maps: Tensor) -> Tensor:
    """How many of the maps [N, H, W] are finite, then the sum of their scores at places of the LIF order.

    Sums of blocks can be added, so that the mean over all images needs no second pass over the maps.
    """
    # float64 where there is any: MPS has none
    values = maps.flatten(1).double() if maps.device.type != "mps" else maps.flatten(1)
    finite = values.isfinite().all(1, keepdim=True)
    places = torch.linspace(0, values.shape[1] - 1, min(values.shape[1], _PLACES)).round().long()
    ordered = values.where(finite, 0).sort(1).values[:, sent(places, values.device)]
    return torch.cat([finite.sum(0).to(values.dtype), ordered.sum(0)])


def _columns(images: Tensor, classes: Classes, plan: Plan) -> dict[str, Tensor]:
    """What is stored of images besides their curves: their classes, and what tells them from others."""
    columns = {
        "target": classes.explained,
        "confidence": classes.logits.float().softmax(1).amax(1),
        "looks": sketches(images),
        "means": images.float().mean((2, 3)),
    }
    # Where the class predicted is explained, the column would be stored twice.
    return columns if plan.targets == "predicted" else {**columns, "predicted": classes.predicted}


def _units(plan: Plan, block: Block) -> dict[str, Tensor]:
    """What the values of scores are in, where that differs between models."""
    units = {unit_column(score.name): score.unit(block) for score in plan.scores}
    return {column: unit.double() for column, unit in units.items() if unit is not None}


def _facts(plan: Plan, block: Block) -> dict[str, Tensor]:
    """What scores know of the images besides their values."""
    facts = {name: values for score in plan.scores for name, values in score.image_facts(block).items()}
    return {fact_column(name): values.double() for name, values in facts.items()}


def _leaving(tensors: Mapping[K, Tensor]) -> dict[K, Tensor]:
    """Copies on the CPU, queued behind the block's own work: they are waited for when they are stored."""
    return {name: values.to("cpu", non_blocking=True) for name, values in tensors.items()}


def _event(device: torch.device) -> torch.cuda.Event | None:
    """Passed when everything queued so far is done; None where nothing is queued."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
