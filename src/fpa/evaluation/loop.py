"""The block loop: images go through in blocks, and each block's curves are on disk before the next ones.

A run of days survives a crash: run it again with the same folder and complete blocks are skipped.
The folder holds `evaluation.json`, what was asked for, and one `block-000000.parquet` a block.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fpa.data.loaders import SHUFFLED, in_order
from fpa.engine import Engine
from fpa.errors import InputError
from fpa.evaluation.shards import (
    SHARDS,
    Evaluation,
    _check_same,
    _check_same_images,
    _described,
    _looks,
    _manifest,
    _Pending,
    _resumes,
    _write_manifest,
    predicted,
    read_evaluation,
)
from fpa.explanation import Estimators, Settings, Task, get_estimators, maps_of, needs_numbers, passes
from fpa.files import clear_temporaries, writable_folder
from fpa.masking import MaskingLike, get_masking, masking_json
from fpa.models.saved import fingerprint
from fpa.perturbation.curves import check_fractions, curves_of, not_finite
from fpa.perturbation.features import features_of
from fpa.perturbation.outputs import check_outputs
from fpa.progress import Tell, telling, watched_by

# A block holds this much of the noise of SmoothGrad, and no more images than this.
_BLOCK_BYTES = {"cuda": 256 << 20}


_BLOCK_IMAGES = {"cuda": 1024}


_SCORE_PLACES = 201


Batch = Tensor | Sequence[Any]


Data = Tensor | tuple[Tensor, Tensor] | Iterable[Batch]


def evaluate_blocks(
    model: nn.Module | Engine,
    data: Data,
    folder: str | Path,
    *,
    estimators: Estimators = "paper",
    settings: Settings | None = None,
    masking: MaskingLike | None = None,
    points: int = 21,
    fractions: Sequence[float] | None = None,
    features: str | int = "pixels",
    outputs: Sequence[str] = (),
    seed: int = 0,
    block: int | None = None,
    progress: "bool | Tell" = True,
) -> Evaluation:
    """Explain and perturb all images, storing the curves in `folder` block by block; resumes what is there.

    `data` is a tensor of images, (images, labels), or anything that yields such batches, a loader say; a
    third part, if any, numbers the images in their data set. Images, maps or logits that are not finite
    are named, left out (NaN) and counted; the rest goes on. `progress` says whether to show it, or is an
    object that does.

    >>> import tempfile
    >>> model, images = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), torch.rand(6, 1, 4, 4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = evaluate_blocks(model, images, folder, estimators="vg_abs", progress=False)
    >>> found.mif["vg_abs"].shape, found.left_out
    ((6, 21), {'vg_abs': 0})
    """
    chosen = settings or Settings()
    named = get_estimators(estimators, chosen)
    shares = check_fractions(points, fractions)
    removal = get_masking(masking)
    check_outputs(outputs)
    if block is not None and block < 1:
        raise InputError(f"a block must have at least 1 image, got {block}")
    engine = Engine.of(model)
    path = writable_folder(Path(folder))
    clear_temporaries(path)
    asked = {
        "model": fingerprint(engine.model),
        "estimators": {name: estimator.described() for name, estimator in named.items()},
        "settings": _described(chosen),
        "masking": masking_json(removal),
        "fractions": shares,
        "features": features,
        "outputs": list(outputs),
        "seed": seed,
        "precision": _described(engine.precision),
    }
    stored = _manifest(path)
    if stored is not None:
        _check_same(stored, asked, path)
        block = block or int(stored["block"])
        if block != stored["block"]:
            raise InputError(
                f"{path} holds blocks of {stored['block']} images, not {block}: use another folder"
            )
    total = _count(data)
    for name, estimator in named.items():
        estimator.raw.check(name, range(total or 0))
    numbered = needs_numbers(named) and not in_order(data)
    if total is not None:
        inner = sum(0 < fraction < 1 for fraction in shares)
        per_image = passes(named) + 2 * inner * len(named)
        engine.expected_rows = max(engine.expected_rows, total * per_image)

    def compute(images: Tensor, labels: Tensor, indices: list[int]) -> "_Pending":
        images = engine.images(images)
        features_of(features, images)
        logits, targets, truth = predicted(engine, images, labels)
        task = Task(engine, images, targets, indices, seed, removal)
        maps = maps_of(task, named)
        by_output = curves_of(
            task,
            maps,
            shares,
            logits=logits,
            labels=truth,
            features=features,
            outputs=check_outputs(("logit", *outputs)),
            shown={name: estimator.label(name).text for name, estimator in named.items()},
        )
        curves = by_output["logit"]
        columns = {"target": targets, **_looks(images)}
        for output, part in by_output.items():
            prefix = "" if output == "logit" else f"{output}."
            columns[f"{prefix}unmasked"] = part.unmasked
            for side, values in (("mif", part.mif), ("lif", part.lif)):
                columns |= {f"{prefix}{side}.{name}": value for name, value in values.items()}
        for side, exact in (("share_mif", curves.shares_mif), ("share_lif", curves.shares_lif)):
            columns |= {f"{side}.{name}": value for name, value in (exact or {}).items()}
        sums = {name: _sorted_sum(values) for name, values in maps.items()}
        return _Pending(columns, not_finite(images, maps, curves), sums, curves.fractions, labels, indices)

    pending: list[tuple[Path, _Pending]] = []
    with telling(total, progress) as tell, watched_by(engine, tell):

        def settle(most: int) -> None:
            nonlocal stored
            while len(pending) > most:
                if stored is None:
                    stored = {**asked, "block": block, "images": None, "first_image": first_image}
                    _write_manifest(path, stored)
                place, ready = pending.pop(0)
                for problem in ready.store(place):
                    warnings.warn(f"{problem}: left out", stacklevel=4)
                tell.advance(len(ready.indices))

        seen, first_image = 0, []
        try:
            for number, (images, labels, indices) in enumerate(
                blocks_of(data, block, engine, chosen, numbered)
            ):
                block = block or block_size(engine, images, chosen)
                if number == 0:
                    looks = (float(values) for values in _looks(images[:1]).values())
                    first_image = [*images.shape[1:], *looks]
                    _check_same_images((stored or {}).get("first_image", first_image), first_image, path)
                seen += len(indices)
                place = path / f"block-{number:06d}.parquet"
                if place.exists() and _resumes(place, engine, images, labels, indices, named, outputs):
                    tell.skip(len(indices))
                    continue
                pending.append((place, compute(images, labels, indices)))
                # On CUDA the next block is queued before this one is waited for.
                settle(1 if engine.device.type == "cuda" else 0)
            settle(0)
        except KeyboardInterrupt:
            settle(0)
            tell.line(f"interrupted: complete blocks are kept in {path}; run again to go on from there")
            raise
        if seen == 0 or stored is None or block is None:
            raise InputError("there are no images: the data are empty")
        beyond = [shard for shard in path.glob(SHARDS) if int(shard.stem[6:]) * block >= seen]
        if beyond:
            raise InputError(
                f"{path} holds blocks of more images than the {seen} given now: use another folder"
            )
        _write_manifest(path, {**stored, "images": seen})
        tell.line(f"peak memory: {engine.peak_memory / 2**30:.2f} GiB")
    return read_evaluation(path)


def _sorted_sum(maps: Tensor) -> Tensor:
    """How many of the maps [N, H, W] are finite, then the sum of their scores at places of the LIF order."""
    values = maps.flatten(1).double() if maps.device.type != "mps" else maps.flatten(1)
    finite = values.isfinite().all(1, keepdim=True)
    places = torch.linspace(0, values.shape[1] - 1, min(values.shape[1], _SCORE_PLACES)).round().long()
    ordered = values.where(finite, 0).sort(1).values[:, places.to(values.device, non_blocking=True)]
    return torch.cat([finite.sum(0).to(values.dtype), ordered.sum(0)])


def block_size(engine: Engine, images: Tensor, settings: Settings) -> int:
    """Images in a block: as many as keep its noise small, a power of two."""
    room = _BLOCK_BYTES.get(engine.device.type, 64 << 20)
    most = _BLOCK_IMAGES.get(engine.device.type, 32)
    fits = room // (4 * settings.sg_samples * images[0].numel())
    return 1 << (max(1, min(most, fits)).bit_length() - 1)


def blocks_of(
    data: Data, block: int | None, engine: Engine, settings: Settings, numbered: bool = False
) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
    """The data cut into blocks of equal size (the last may be smaller): images, labels, indices."""
    held: list[tuple[Tensor, Tensor, Tensor]] = []
    size, first = 0, 0
    for batch in [data] if isinstance(data, Tensor) or _is_pair(data) else data:
        if numbered and not (isinstance(batch, (tuple, list)) and len(batch) == 3):
            raise InputError(SHUFFLED)
        images, labels, indices = _parts(batch, first)
        if len(images) == 0:
            continue
        first += len(images)
        held.append((images, labels, indices))
        size += len(images)
        block = block or block_size(engine, images, settings)
        if size >= block:
            joined = [torch.cat(part) if len(part) > 1 else part[0] for part in zip(*held, strict=True)]
            whole = size - size % block
            for start in range(0, whole, block):
                a, b, c = (part[start : start + block] for part in joined)
                yield a, b, c.tolist()
            held = [(joined[0][whole:], joined[1][whole:], joined[2][whole:])] if size > whole else []
            size -= whole
    if size:
        a, b, c = (torch.cat(part) for part in zip(*held, strict=True))
        yield a, b, c.tolist()


def _parts(batch: Any, first: int) -> tuple[Tensor, Tensor, Tensor]:
    if isinstance(batch, Tensor):
        batch = (batch,)
    if not isinstance(batch, (tuple, list)) or not 1 <= len(batch) <= 3 or not isinstance(batch[0], Tensor):
        raise InputError(
            "a batch must be images, (images, labels) or (images, labels, indices), got "
            + (
                f"{type(batch).__name__} of {len(batch)}"
                if isinstance(batch, (tuple, list))
                else type(batch).__name__
            )
        )
    images, count = batch[0], len(batch[0])
    labels = torch.as_tensor(batch[1]) if len(batch) > 1 else torch.full((count,), -1)
    indices = torch.as_tensor(batch[2]) if len(batch) > 2 else torch.arange(first, first + count)
    if labels.shape != (count,) or indices.shape != (count,):
        raise InputError(
            f"{count} images came with labels {list(labels.shape)} and indices {list(indices.shape)}, "
            f"expected [{count}] of each"
        )
    return images, labels.to("cpu", torch.int64), indices.to("cpu", torch.int64)


def _is_pair(data: object) -> bool:
    return isinstance(data, tuple) and all(isinstance(part, Tensor) for part in data)


def _count(data: Any) -> int | None:
    if isinstance(data, Tensor):
        return len(data)
    if _is_pair(data):
        return len(data[0])
    dataset = getattr(data, "dataset", None)
    return len(dataset) if dataset is not None and hasattr(dataset, "__len__") else None
