"""Images and maps as pictures that a page holds itself."""

import base64
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

_STOPS = np.array(
    [[64, 0, 75], [174, 139, 189], [247, 247, 247], [128, 197, 129], [0, 68, 27]], dtype=np.float64
)
"""PRGn from -1 to 1, as in the explorer: green speaks for the class."""

SMALL = 64
"""Pictures up to this side are kept pixel by pixel: they are enlarged in the page."""

LARGEST = 240
"""The longer side of others: twice as large as they are shown, for screens with small pixels."""


def rgb(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[C, H, W] to [H, W, 3]: the first three channels, or the first one as grey."""
    return image[[0, 1, 2] if len(image) >= 3 else [0, 0, 0]].transpose(1, 2, 0)


def heat(values: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """A map in colours, clipped at the 99th percentile of its size: one pixel would pale all others."""
    scores = np.nan_to_num(values.astype(np.float64), posinf=0, neginf=0)
    size = np.abs(scores)
    limit = float(np.quantile(size, 0.99)) or float(size.max()) or 1.0
    shares = np.clip(scores / limit, -1, 1)
    channels = [np.interp(shares, np.linspace(-1, 1, len(_STOPS)), stops) for stops in _STOPS.T]
    return np.round(np.stack(channels, -1)).astype(np.uint8)


def inline(pixels: NDArray[np.uint8]) -> str:
    """A picture [H, W, 3] as an address that holds it; a large one is reduced and compressed."""
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(pixels))
    file = BytesIO()
    if max(picture.size) <= SMALL:
        picture.save(file, "PNG")
        kind = "png"
    else:
        picture.thumbnail((LARGEST, LARGEST), Image.Resampling.BOX)
        picture.save(file, "JPEG", quality=88)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
