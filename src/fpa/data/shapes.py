"""The embedded data set `shapes`: eight textured shapes on colour noise, drawn from a seed.

Every number comes from the raw stream of PCG64, whose values numpy guarantees for good, through additions,
multiplications and square roots only, which IEEE 754 rounds the same everywhere: no sine, no sum over an
axis. So the images are the same on every machine.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from fpa.data.splits import ArraySplit, DataRequest, ImageData, array_data

Floats = NDArray[np.float32]
Drawn = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_]]

CLASSES = ["disc", "square", "diamond", "cross", "ring", "triangle", "X", "frame"]

SIZE = 32

_ROOT_HALF = 0.5**0.5

_NOISE = (0.6, 0.7, 0.6, 0.4, 0.3)  # amplitudes of the background at scales of 16, 8, 4, 2 and 1 pixels

_CHUNK = 500  # images at a time: working arrays stay in the cache


def draw_shapes(count: int, seed: int) -> Drawn:
    """Images [N, 3, 32, 32], labels [N] and foreground [N, 32, 32]: True on the shape's pixels.

    Image i is of class i % 8, so that any run of 8 images holds every class. The first images do not
    depend on how many are drawn.

    >>> images, labels, foreground = draw_shapes(8, seed=0)
    >>> [CLASSES[label] for label in labels[:3]], images.shape, foreground.shape
    (['disc', 'square', 'diamond'], (8, 3, 32, 32), (8, 32, 32))
    """
    starts = range(0, count, _CHUNK)
    labels = (np.arange(start, start + _CHUNK) % len(CLASSES) for start in starts)
    parts = map(_draw, labels, (np.random.PCG64([seed, start]) for start in starts))
    images, classes, foreground = (np.concatenate(arrays)[:count] for arrays in zip(*parts, strict=True))
    return images, classes, foreground


def _draw(labels: NDArray[np.int64], stream: np.random.PCG64) -> Drawn:
    count = len(labels)

    def uniform(low: float, high: float, *shape: int) -> Floats:
        values = count * math.prod(shape)
        steps = stream.random_raw(-(-values // 4)).astype("<u8").view("<u2")  # four values of 16 bits in one
        return low + (high - low) / 2**16 * steps[:values].reshape(count, *shape).astype(np.float32)

    background = uniform(0.15, 0.85, 3, 1, 1)
    # The most distant of a few colours, so that most shapes stand out and some hardly do.
    candidates = uniform(0.05, 0.95, 3, 3, 1)[..., None]
    distance = np.abs(candidates - background[:, None])
    chosen = (distance[:, :, 0] + distance[:, :, 1] + distance[:, :, 2]).argmax(axis=1)
    colour = np.take_along_axis(candidates, chosen[:, None, None], axis=1)[:, 0]

    radius = uniform(6, 11, 1, 1)
    margin = 1.12 * radius + 0.5
    room = SIZE - 1 - 2 * margin
    pixels = np.arange(SIZE, dtype=np.float32)
    x = pixels - (margin + room * uniform(0, 1, 1, 1))
    y = pixels[:, None] - (margin + room * uniform(0, 1, 1, 1))
    half_tangent = uniform(-0.1, 0.1, 1, 1)  # turned by up to 11 degrees: a square is never a diamond
    norm = 1 + half_tangent * half_tangent
    sine: Floats = 2 * half_tangent / norm
    cosine: Floats = (2 - norm) / norm
    turned = (cosine * x + sine * y, cosine * y - sine * x)
    x, y = turned
    inside = np.empty_like(x)
    for label, shape in enumerate(CLASSES):
        of_shape = labels == label
        outside = _distance(shape, x[of_shape], y[of_shape], radius[of_shape])
        inside[of_shape] = np.clip(0.5 - outside, 0, 1)

    # Stripes of two shades: a triangle wave along a direction across the shape.
    phase = uniform(-0.3, 0.3, 1, 1) * x + uniform(-0.3, 0.3, 1, 1) * y + uniform(0, 1, 1, 1)
    wave = 4 * np.abs(phase - np.floor(phase) - 0.5) - 1
    stripes = wave[:, None] * uniform(-0.25, 0.25, 3, 1, 1)
    grain = uniform(0.02, 0.12, 1, 1, 1) * uniform(-1, 1, 3, SIZE, SIZE)

    # Noise on a coarse grid, made twice as fine again and again, with finer noise added each time.
    scene = uniform(-1, 1, 3, 4, 4) * _NOISE[0]
    for amplitude in _NOISE[1:]:
        scene = _finer(_finer(scene).swapaxes(2, 3)).swapaxes(2, 3)
        scene += amplitude * uniform(-1, 1, *scene.shape[1:])
    scene = background + uniform(0.2, 0.55, 1, 1, 1) * scene[:, :, 1:-1, 1:-1]
    alpha = inside[:, None]
    values = scene + alpha * (colour + stripes + grain - scene)
    images = np.floor(np.clip(values, 0, 1) * 255 + 0.5).astype(np.uint8)
    return images, labels, inside >= 0.5


def _finer(grid: Floats) -> Floats:
    """Rows [..., n, m] to twice as many, [..., 2 n - 2, m]: at a quarter and three quarters of each gap."""
    first = grid[..., :-1, :]
    second = grid[..., 1:, :]
    rows = np.empty((*grid.shape[:-2], 2 * grid.shape[-2] - 2, grid.shape[-1]), np.float32)
    rows[..., 0::2, :] = 0.75 * first + 0.25 * second
    rows[..., 1::2, :] = 0.25 * first + 0.75 * second
    return rows


def _distance(shape: str, x: Floats, y: Floats, radius: Floats) -> Floats:
    """How far each pixel [N, 32, 32] lies outside the shape, in pixels; negative inside."""
    across = np.abs(x)
    along = np.abs(y)
    disc = np.sqrt(x * x + y * y)
    square = np.maximum(across, along)
    distances: dict[str, Callable[[], Floats]] = {
        "disc": lambda: disc - radius,
        "square": lambda: square - 0.88 * radius,
        "diamond": lambda: (across + along - 1.1 * radius) * _ROOT_HALF,
        "cross": lambda: _bars(across, along, radius),
        "ring": lambda: np.abs(disc - 0.74 * radius) - 0.26 * radius,
        "triangle": lambda: np.maximum(y - 0.75 * radius, (1.75 * across - y - radius) / 2.0156),
        "X": lambda: _bars(np.abs(x + y) * _ROOT_HALF, np.abs(x - y) * _ROOT_HALF, radius),
        "frame": lambda: np.abs(square - 0.67 * radius) - 0.23 * radius,
    }
    return distances[shape]()


def _bars(across: Floats, along: Floats, radius: Floats) -> Floats:
    """Two crossed bars."""
    width = 0.3 * radius
    length = 1.05 * radius
    return np.minimum(np.maximum(across - width, along - length), np.maximum(across - length, along - width))


def load(request: DataRequest) -> ImageData:
    """4,000 images to train on and 1,000 to test."""
    drawn = (draw_shapes(4000, seed=0), draw_shapes(1000, seed=1))
    train, test = (ArraySplit(*map(torch.from_numpy, arrays)) for arrays in drawn)
    # Every shape is its own mirror image; shapes lie anywhere already, so crops would add only borders.
    return array_data(request, train, test, CLASSES, flip=True)
