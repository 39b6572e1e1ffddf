"""The files of an evaluation: one Parquet file a block."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fpa.described import described, described_fields
from fpa.engine import Engine
from fpa.errors import DamagedError, InputError, differences
from fpa.explanation import Settings
from fpa.files import read_json, replacing, write_text
from fpa.perturbation.curves import problems
from fpa.scores.fidelity import Fidelity

Floats = NDArray[np.floating[Any]]


Integers = NDArray[np.int64]


SHARDS = "block-[0-9]*.parquet"
"""The names of the files of curves."""


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


def read_evaluation(folder: str | Path) -> Evaluation:
    """The curves stored in a folder by `evaluate`, as far as it came."""
    path = Path(folder)
    stored, tables = read_blocks(path)
    if stored is None or not tables:
        raise InputError(
            f"{path} holds no evaluation: run fpa.evaluation.loop.evaluate_blocks with this folder first"
        )
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


def _described(value: Any) -> Any:
    """A value as JSON that differs when the value does, as far as that can be seen."""
    return described_fields(value) if isinstance(value, Settings) else described(value)


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


def predicted(engine: Engine, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The logits, the classes predicted and the true ones; where the label is -1, unknown, the predicted."""
    logits = engine.predict(images)
    targets = engine.explained(logits)
    given = engine.explained(logits, labels.clamp(min=0), "labels")
    return logits, targets, torch.where(labels.to(given.device) >= 0, given, targets)
