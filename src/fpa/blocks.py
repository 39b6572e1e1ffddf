"""The block loop: images go through in blocks, and each block's curves are on disk before the next ones.

A run of days survives a crash: run it again with the same folder and complete blocks are skipped.
The folder holds `evaluation.json`, what was asked for, and one `block-000000.parquet` a block.
"""

import hashlib
import json
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fpa.curves import check_features, check_fractions, check_outputs, curves_of, not_finite, problems
from fpa.engine import Engine
from fpa.errors import DamagedError, InputError
from fpa.estimators import (
    Estimator,
    Estimators,
    Method,
    Settings,
    get_estimators,
    gradients_per_image,
    maps_of,
    needs_numbers,
)
from fpa.fidelity import Fidelity
from fpa.inputs import SHUFFLED, in_order
from fpa.masking import Constant, Masking
from fpa.models import tensor_bytes
from fpa.recipe import differences
from fpa.store import clear_temporaries, read_json, replacing, writable_folder, write_text

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]

SHARDS = "block-[0-9]*.parquet"
"""The names of the files of curves."""

# A block holds this much of the noise of SmoothGrad, and no more images than this.
_BLOCK_BYTES = {"cuda": 256 << 20}
_BLOCK_IMAGES = {"cuda": 1024}
_SCORE_PLACES = 201


@dataclass(frozen=True)
class Evaluation:
    """Curves read back from a folder; NaN marks what was left out because it was not finite."""

    fractions: Floats
    """[K]: the share of pixels removed at each point."""
    indices: Integers
    """[N]: the numbers of the images in their data set."""
    labels: Integers
    """[N]: their true classes, -1 where unknown."""
    targets: Integers
    """[N]: the classes explained."""
    unmasked: Floats
    """[N]: the value of the unmasked image."""
    mif: dict[str, Floats]
    """Most important first, [N, K] for every estimator."""
    lif: dict[str, Floats]
    """Least important first, [N, K] for every estimator."""
    shares_mif: dict[str, Floats] | None = None
    """Exact share of pixels removed, [N, K], where features differ in size."""
    shares_lif: dict[str, Floats] | None = None
    scores: dict[str, Floats] = field(default_factory=dict)
    """For every estimator the mean over images of the image's scores sorted in LIF order, at evenly spaced
    places from the first pixel removed to the last, [P] with P at most 201."""
    others: dict[str, "Evaluation"] = field(default_factory=dict)
    """The same for other outputs: "probability", "margin", "accuracy"."""
    problems: list[str] = field(default_factory=list)
    """What was left out, in words."""
    complete: bool = True
    """Whether the run came to its end."""

    def fidelity(self, estimator: str, *, keep: NDArray[np.bool_] | None = None) -> Fidelity:
        """The area A of an estimator, each image over the shares of its own pixels that were removed."""
        return Fidelity.from_curves(
            self.mif[estimator],
            self.lif[estimator],
            self.shares_mif[estimator] if self.shares_mif else self.fractions,
            fractions_lif=self.shares_lif[estimator] if self.shares_lif else None,
            keep=keep,
        )

    @property
    def left_out(self) -> dict[str, int]:
        """For every estimator the number of images without a finite curve."""
        return {name: int((~np.isfinite(self.mif[name] + self.lif[name]).all(1)).sum()) for name in self.mif}

    @property
    def not_positive(self) -> int:
        """Images whose unmasked value is 0 or less, so that a ratio to it means nothing."""
        return int((self.unmasked <= 0).sum())


Batch = Tensor | Sequence[Any]
Data = Tensor | tuple[Tensor, Tensor] | Iterable[Batch]


def evaluate_blocks(
    model: nn.Module | Engine,
    data: Data,
    folder: str | Path,
    *,
    estimators: Estimators = "paper",
    settings: Settings | None = None,
    masking: Masking | None = None,
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
    named, chosen = get_estimators(estimators), settings or Settings()
    shares = check_fractions(points, fractions)
    masking = masking or Constant()
    check_outputs(outputs)
    if block is not None and block < 1:
        raise InputError(f"a block must have at least 1 image, got {block}")
    engine = Engine.of(model)
    path = writable_folder(Path(folder))
    clear_temporaries(path)
    asked = {
        "model": fingerprint(engine.model),
        "estimators": {name: _described(estimator) for name, estimator in named.items()},
        "settings": _described(chosen),
        "masking": _described(masking),
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
    by_number = {name: one.raw for name, one in named.items() if isinstance(one.raw, Method)}
    for name, method in by_number.items():
        method.check(name, range(total or 0))
    numbered = needs_numbers(named) and not in_order(data)
    if total is not None:
        inner = sum(0 < fraction < 1 for fraction in shares)
        per_image = gradients_per_image(named, chosen) + 2 * inner * len(named)
        engine.expected_rows = max(engine.expected_rows, total * per_image)

    def compute(images: Tensor, labels: Tensor, indices: list[int]) -> "_Pending":
        images = engine.images(images)
        check_features(features, images)
        logits, targets, truth = predicted(engine, images, labels)
        maps = maps_of(engine, images, named, targets, indices, seed, chosen, masking)
        curves = curves_of(
            engine,
            images,
            maps,
            shares,
            logits,
            targets,
            indices,
            seed,
            masking,
            features,
            tuple(outputs),
            truth,
        )
        columns = {"target": targets, **_looks(images)}
        for prefix, part in {
            "": curves,
            **{f"{name}.": other for name, other in curves.others.items()},
        }.items():
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


def read_evaluation(folder: str | Path) -> Evaluation:
    """The curves stored in a folder by `evaluate`, as far as it came."""
    path = Path(folder)
    stored, tables = read_blocks(path)
    if stored is None or not tables:
        raise InputError(f"{path} holds no evaluation: run fpa.blocks.evaluate_blocks with this folder first")
    told = [problem for table in tables for problem in json.loads(table.schema.metadata[b"problems"])]
    fractions = np.array(json.loads(tables[0].schema.metadata[b"fractions"]))

    def column(name: str) -> Any:
        parts = [table[name].combine_chunks() for table in tables]
        if hasattr(parts[0].type, "list_size"):
            return np.concatenate(
                [part.flatten().to_numpy().reshape(-1, part.type.list_size) for part in parts]
            )
        return np.concatenate([part.to_numpy() for part in parts])

    def by_estimator(prefix: str) -> dict[str, Floats] | None:
        return {
            name.removeprefix(prefix): column(name)
            for name in tables[0].column_names
            if name.startswith(prefix)
        } or None

    sums: dict[str, Any] = {}
    for table in tables:
        for name, values in json.loads(table.schema.metadata[b"scores"]).items():
            sums[name] = sums.get(name, 0) + np.array(values)
    scores = {name: values[1:] / max(values[0], 1) for name, values in sums.items()}
    common = {"fractions": fractions, "indices": column("index"), "labels": column("label")}
    common |= {"targets": column("target"), "problems": told}
    common |= {"complete": stored["images"] == sum(len(table) for table in tables)}
    common |= {"shares_mif": by_estimator("share_mif."), "shares_lif": by_estimator("share_lif.")}

    def output(prefix: str, **others: Any) -> Evaluation:
        mif, lif = by_estimator(f"{prefix}mif.") or {}, by_estimator(f"{prefix}lif.") or {}
        return Evaluation(**common, unmasked=column(f"{prefix}unmasked"), mif=mif, lif=lif, **others)

    others = {name: output(f"{name}.") for name in stored["outputs"] if name != "logit"}
    return output("", scores=scores, others=others)


def read_blocks(path: Path) -> tuple[dict[str, Any] | None, list[Any]]:
    """What evaluation.json says, None where there is none, and the tables; names all that are damaged."""
    stored: dict[str, Any] | None = None
    tables: list[Any] = []
    damaged: dict[Path, object] = {}
    try:
        stored = _manifest(path)
    except DamagedError as error:
        damaged |= error.reasons
    for shard in sorted(path.glob(SHARDS)):
        try:
            if stored is None:
                raise DamagedError({shard: "no evaluation.json describes it"})
            tables.append(_read_shard(shard, stored["estimators"], tables[0] if tables else None))
        except DamagedError as error:
            damaged |= error.reasons
    if damaged:
        raise DamagedError(damaged)
    return stored, tables


def predicted(engine: Engine, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The logits, the classes predicted and the true ones; where the label is -1, unknown, the predicted."""
    logits = engine.predict(images)
    targets = engine.explained(logits)
    given = engine.explained(logits, labels.clamp(min=0), "labels")
    return logits, targets, torch.where(labels.to(given.device) >= 0, given, targets)


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


class _Pending:
    """A block on its way from the device to the disk."""

    def __init__(
        self,
        columns: Mapping[str, Tensor],
        bad: Mapping[tuple[str, str], Tensor],
        sums: Mapping[str, Tensor],
        fractions: Tensor,
        labels: Tensor,
        indices: list[int],
    ) -> None:
        # The copies are queued behind the block's own work and waited for when they are stored.
        self.columns = {name: values.to("cpu", non_blocking=True) for name, values in columns.items()}
        self.bad = {what: values.to("cpu", non_blocking=True) for what, values in bad.items()}
        self.sums = {name: values.to("cpu", non_blocking=True) for name, values in sums.items()}
        self.done: Any = None
        device = columns["target"].device
        if device.type == "cuda":
            self.done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.done.record(torch.cuda.current_stream(device))
        self.fractions, self.labels, self.indices = fractions.tolist(), labels, indices

    def store(self, path: Path) -> list[str]:
        """Write the block in one piece; returns what was left out, in words."""
        import pyarrow as pa

        if self.done is not None:
            self.done.synchronize()
        told = problems(self.bad, self.indices)
        arrays = {"index": pa.array(self.indices, pa.int64()), "label": pa.array(self.labels.numpy())}
        for name, values in self.columns.items():
            flat = pa.array(values.contiguous().flatten().numpy())
            arrays[name] = (
                flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
            )
        words = {
            "problems": json.dumps(told),
            "fractions": json.dumps(self.fractions),
            "scores": json.dumps({name: values.tolist() for name, values in self.sums.items()}),
        }
        # Parquet checks its columns alone.
        _write_shard(path, pa.table(arrays).replace_schema_metadata({**words, "checksum": _checksum(words)}))
        return told


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


def fingerprint(model: nn.Module) -> str:
    """Of the weights: two models with the same weights and names are the same."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()[:16]


def _described(value: Any) -> Any:
    """A value as JSON that differs when the value does, as far as that can be seen."""
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, (tuple, list)):
        return [_described(part) for part in value]
    if isinstance(value, Method):
        return value.described()
    if isinstance(value, Tensor):
        return hashlib.sha256(value.detach().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]
    name = getattr(value, "__qualname__", type(value).__qualname__)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {
            entry.name: _described(getattr(value, entry.name)) for entry in fields(value) if entry.compare
        }
        return parts if isinstance(value, (Settings, Estimator)) else {"name": name, **parts}
    return name


def _manifest(path: Path) -> dict[str, Any] | None:
    file = path / "evaluation.json"
    if not file.exists():
        return None
    stored = read_json(file)
    kinds = {"model": str, "estimators": dict, "outputs": list, "block": int, "images": int | None}
    for name, kind in kinds.items():
        if name not in stored or not isinstance(stored[name], kind):
            raise DamagedError({file: f"it has no {name!r}, or one that means nothing"})
    return stored


def _write_manifest(path: Path, stored: Mapping[str, Any]) -> None:
    write_text(path / "evaluation.json", json.dumps(stored, indent=2) + "\n")


def _check_same(stored: Mapping[str, Any], asked: Mapping[str, Any], path: Path) -> None:
    now = json.loads(json.dumps(asked))
    different = [name for name in now if stored.get(name) != now[name]]
    if different:
        lines = differences({n: now[n] for n in different}, {n: stored.get(n) for n in different})
        raise InputError(
            f"{path} holds an evaluation with other {', '.join(different)} ({'; '.join(lines)}): choose "
            "another folder (--output), or start anew (--overwrite, or remove it)"
        )


def _looks(images: Tensor) -> dict[str, Tensor]:
    """Mean and standard deviation of every image, [N] each: enough to tell other images from the same."""
    values = images.detach().float().flatten(1).nan_to_num(posinf=0, neginf=0)
    return {"image_mean": values.mean(1), "image_std": values.std(1, correction=0)}


def _check_same_images(before: Sequence[float], now: Sequence[float], path: Path) -> None:
    # Not bit by bit: another version of a decoder makes other last bits of the same image.
    if len(before) != len(now) or not np.allclose(before, now, rtol=0, atol=1e-2):
        raise InputError(
            f"{path} holds an evaluation of other images, or of the same ones sized or normalised otherwise: "
            "use another folder or remove it"
        )


def _read_shard(shard: Path, estimators: Iterable[str], first: Any = None) -> Any:
    """The table of a block; it must have the curves of the estimators, as many points as the first table."""
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(shard, page_checksum_verification=True)
        told = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        words = {name: told[name] for name in ("problems", "fractions", "scores")}
    except KeyError as error:
        raise DamagedError({shard: f"it is no block of an evaluation, it has no {error}"}) from error
    except Exception as error:  # damaged files raise exceptions of many types
        raise DamagedError({shard: error}) from error
    if told.get("checksum", _checksum(words)) != _checksum(words):  # earlier blocks have none
        raise DamagedError({shard: "its content does not match its checksum"})
    needed = {"index", "label", "target", "unmasked"}
    needed |= {f"{side}.{name}" for side in ("mif", "lif") for name in estimators}
    missing = sorted(needed - set(table.column_names))
    if missing:
        raise DamagedError({shard: f"it is no block of this evaluation, it has no {', '.join(missing[:3])}"})
    if first is not None and any(
        table.schema.field(name).type != first.schema.field(name).type for name in needed
    ):
        raise DamagedError({shard: "it is a block of another evaluation, with other columns"})
    return table


def _checksum(words: Mapping[str, str]) -> str:
    return hashlib.blake2b(json.dumps(words, sort_keys=True).encode(), digest_size=16).hexdigest()


def _write_shard(path: Path, table: Any) -> None:
    import pyarrow.parquet as pq

    with replacing(path) as temporary:
        pq.write_table(table, temporary, write_page_checksum=True)


def _resumes(
    shard: Path,
    engine: Engine,
    images: Tensor,
    labels: Tensor,
    indices: list[int],
    estimators: Iterable[str],
    outputs: Sequence[str],
) -> bool:
    """Whether a block on disk can stay. It must be of these images; other labels are put into it."""
    import pyarrow as pa

    table = _read_shard(shard, estimators)
    if table["index"].to_pylist() != indices:
        raise InputError(f"{shard} was made of other images: use another folder or remove it")
    for name, values in _looks(images).items():
        if name in table.column_names:  # earlier folders have none
            _check_same_images(table[name].to_pylist(), values.tolist(), shard.parent)
    given = pa.array(labels.numpy())
    if table["label"].combine_chunks().equals(given):
        return True
    predicted(engine, engine.images(images), labels)  # refuses labels that the model does not have
    if "accuracy" in outputs:  # its curves depend on the labels
        return False
    _write_shard(shard, table.set_column(table.column_names.index("label"), "label", given))
    return True


class Tell(Protocol):
    """Shows how far an evaluation is."""

    def at(self, estimator: str) -> None:
        """An estimator is being explained or perturbed now."""

    def advance(self, images: int) -> None:
        """So many more images are done."""

    def skip(self, images: int) -> None:
        """So many more images were done before."""

    def line(self, text: str) -> None:
        """A line that stays."""


@contextmanager
def telling(total: int | None, shown: bool | Tell) -> Iterator[Tell]:
    """Shows the progress of `total` images: not at all, as the terminal allows, or with the object given."""
    if not isinstance(shown, bool):
        yield shown
    elif not shown:
        yield _Quiet()
    elif not sys.stderr.isatty():
        yield _Lines(total)
    else:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        speed = TextColumn("{task.fields[speed]} images/s")
        at = TextColumn("{task.fields[at]:<10}", markup=False)
        columns = (SpinnerColumn(), BarColumn(), MofNCompleteColumn(), at, speed, TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), speed_estimate_period=600) as bar:
            yield _Bar(total, bar)


@contextmanager
def watched_by(engine: Engine, tell: Tell) -> Iterator[None]:
    """Tell which estimator the engine is at."""
    before = engine.watch
    engine.watch = tell.at
    try:
        yield
    finally:
        engine.watch = before


class _Quiet:
    """Counts and says nothing."""

    def __init__(self, total: int | None = None) -> None:
        self.total, self.done, self.skipped, self.start = total, 0, 0, time.monotonic()

    @property
    def speed(self) -> float:
        return (self.done - self.skipped) / max(time.monotonic() - self.start, 1e-9)

    def at(self, estimator: str) -> None:
        pass

    def advance(self, images: int) -> None:
        self.done += images

    def skip(self, images: int) -> None:
        self.done += images
        self.skipped += images

    def line(self, text: str) -> None:
        pass


class _Lines(_Quiet):
    """Plain lines, at most one in ten seconds, for logs."""

    last = 0.0

    def advance(self, images: int) -> None:
        super().advance(images)
        if time.monotonic() - self.last > 10 or self.done == self.total:
            self.last = time.monotonic()
            of = f" of {self.total}" if self.total else ""
            left = f", {(self.total - self.done) / self.speed:.0f} s left" if self.total else ""
            self.line(f"{self.done}{of} images, {self.speed:.1f} images/s{left}")

    def line(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class _Bar(_Quiet):
    def __init__(self, total: int | None, bar: Any) -> None:
        super().__init__(total)
        self.bar, self.task = bar, bar.add_task("", total=total, speed="...", at="")

    def at(self, estimator: str) -> None:
        self.bar.update(self.task, at=estimator)

    def advance(self, images: int) -> None:
        super().advance(images)
        self.bar.update(self.task, advance=images, speed=f"{self.speed:.1f}")

    def skip(self, images: int) -> None:
        super().skip(images)
        self.bar.update(self.task, advance=images)

    def line(self, text: str) -> None:
        self.bar.console.print(text)
