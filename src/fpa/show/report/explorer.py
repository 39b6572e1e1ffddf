"""The example images of results, packed small enough for a page."""

import base64
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fpa.evaluation.examples import Examples
from fpa.evaluation.result import Results
from fpa.show.summary import removed_unit

STEPS = 200
"""Positions of the slider after the first: half a percent each. A pixel's position then fits in a byte."""


BUDGET = 13_500_000
"""About how many bytes of the page the examples may take; of large images fewer are shown."""


def explorer_data(results: Results) -> dict[str, Any] | None:
    """Images, positions, heat maps and curves of the examples that all models have; None if there are none.

    Every array is base64 of bytes. The position of a pixel, 0 to `STEPS` - 1, says when it is removed: in LIF
    order it is gone at slider positions above its own, in MIF order at `STEPS` minus its own and above. The
    pixels of a patch share their position. As a map's values follow its order, a heat map is one value for
    each position: the mean of its pixels there. Where patches or segments are removed, `shares` has the
    share of them that is gone at every position of the slider.
    """
    models = list(results.models.values())
    examples = {place: model.examples for place, model in enumerate(models) if model.examples}
    rows = [_rows(each.indices) for each in examples.values()]
    curve_rows = [_rows(models[place].evaluation.indices) for place in examples]
    shared = [i for i in next(iter(rows), {}) if all(i in each for each in rows + curve_rows)]
    estimators = [name for name in results.estimators if all(name in each.maps for each in examples.values())]
    if not shared or not estimators:
        return None
    first = next(iter(examples.values()))
    height, width = first.images.shape[2:]
    fill = _rgb(first.fill)
    one_colour = bool((fill == fill[:1, :1, :1]).all())
    bytes_a_pixel = 4 / 3 * (len(estimators) * len(examples) + (4 if one_colour else 7))
    indices = shared[: max(1, int(BUDGET / (height * width * bytes_a_pixel)))]
    at = [rows[0][i] for i in indices]
    removed = _removed(first.ranks[estimators[0]][0], STEPS + 1)
    unit = removed_unit(results)
    # Segments differ in number between images: their curves are at the shares asked for.
    gone = np.arange(STEPS + 1) / STEPS if unit == "segments" else removed / removed[-1]
    shares = None if unit == "pixels" else numbers(gone)
    packed = []
    for (model, each), own, places in zip(examples.items(), rows, curve_rows, strict=True):
        classes = [int(each.targets[own[i]]) for i in indices]
        targets = [_class(results, number) for number in classes]
        # By number: two classes may share a name, as ImageNet's cranes do. None where there is no label.
        labels = [int(each.labels[own[i]]) for i in indices]
        right = [None if label < 0 else label == says for label, says in zip(labels, classes, strict=True)]
        maps = [_packed_maps(each, name, [own[i] for i in indices]) for name in estimators]
        sides = {"mif": models[model].evaluation.mif, "lif": models[model].evaluation.lif}
        curves = []
        for name in estimators:
            of_images = {
                side: [numbers(values[name][places[i]]) for i in indices] for side, values in sides.items()
            }
            curves.append(of_images)
        others = models[model].description.plan.targets != "predicted"
        about = {"model": model, "targets": targets, "right": right, "others": others}
        packed.append(about | {"maps": maps, "curves": curves})
    return {
        "height": height,
        "width": width,
        "steps": STEPS,
        "shares": shares,
        "left_out": len(shared) - len(indices),
        "images": _base64(_rgb(first.images[at])),
        "fill": _base64(fill[0, 0, 0] if one_colour else fill[at]),
        "shapes": None if first.foreground is None else _base64(first.foreground[at].astype(np.uint8)),
        "examples": [{"index": i, "label": _class(results, first.labels[rows[0][i]])} for i in indices],
        "estimators": [results.estimators.index(name) for name in estimators],
        "models": packed,
    }


def numbers(values: Any, digits: int = 5) -> list[float | None]:
    """Values with so many significant digits; None for what is missing or not finite, which JSON lacks."""
    return [None if v is None or not np.isfinite(v) else float(f"{v:.{digits}g}") for v in values]


def positions(ranks: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
    """The slider position of every pixel: the last at which it is still there in LIF order.

    Features are pixels, or patches whose pixels share a rank. With k = round(j / STEPS * features) of them
    gone at position j, `positions(ranks) < j` is `ranks < k`, and `positions(ranks) >= STEPS - j` is
    `ranks >= features - k` (a feature off where k is rounded from a half).
    """
    return (np.searchsorted(_removed(ranks, STEPS), ranks, side="right") - 1).astype(np.uint8)


def _rows(indices: NDArray[np.int64]) -> dict[int, int]:
    """Where each image is, by its number in the data set."""
    return {int(i): row for row, i in enumerate(indices)}


def _removed(ranks: NDArray[np.integer[Any]], count: int) -> NDArray[np.int64]:
    """How many features are gone at the first `count` positions of the slider."""
    return np.round(np.arange(count) / STEPS * (int(ranks.max()) + 1)).astype(np.int64)


def _packed_maps(examples: Examples, estimator: str, rows: list[int]) -> dict[str, Any]:
    """Positions [M, H, W], heat [M, STEPS] in -127..127 as bytes, and the score that 127 stands for."""
    places = [positions(examples.ranks[estimator][row]) for row in rows]
    heat = []
    limits = []
    for row, place in zip(rows, places, strict=True):
        scores = np.nan_to_num(examples.maps[estimator][row].astype(np.float64), posinf=0, neginf=0)
        size = np.abs(scores)
        limit = float(np.quantile(size, 0.99)) or float(size.max()) or 1.0
        pixels = np.bincount(place.ravel(), minlength=STEPS)
        mean = np.bincount(place.ravel(), scores.ravel(), minlength=STEPS) / np.maximum(pixels, 1)
        heat.append(np.round(127 * np.clip(mean / limit, -1, 1)).astype(np.int8))
        limits.append(limit)
    return {"positions": _base64(places), "heat": _base64(heat), "limits": numbers(limits)}


def _rgb(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[M, C, H, W] to [M, H, W, 3]: the first three channels, or the first one as grey."""
    return images[:, [0, 1, 2] if images.shape[1] >= 3 else [0, 0, 0]].transpose(0, 2, 3, 1)


def _base64(arrays: ArrayLike) -> str:
    return base64.b64encode(np.ascontiguousarray(arrays).tobytes()).decode()


def _class(results: Results, number: int) -> str | None:
    """The name of a class; None for that of an image without a label."""
    if number < 0:
        return None
    return results.classes[number] if number < len(results.classes) else f"class {number}"
