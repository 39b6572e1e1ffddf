"""Other people's explanations as estimators: Captum's methods by name, precomputed maps, Quantus' functions.

Captum's hooks need a model in which nothing works in place and every activation is a module used once.
Few models are so, hence they get a private copy that is; the user's model is never touched.
"""

import re
from pathlib import Path
from typing import get_args

from fpa.explanation.captum import Captum
from fpa.explanation.estimator import Estimator, Reduction
from fpa.explanation.maps import Maps


def by_name(name: str) -> Estimator:
    """The estimator `captum:METHOD[_sum|_abs][@LAYER]` or `maps:FILE[#ARRAY]`.

    >>> by_name("captum:LayerGradCam_abs@layer4").raw
    Captum(method='LayerGradCam', layer='layer4')
    """
    source, _, rest = name.partition(":")
    if source == "maps":
        file, _, array = rest.partition("#")
        return Estimator(Maps(Path(file), array or None))
    rest, _, layer = rest.partition("@")
    match = re.fullmatch(rf"(.*?)(?:_({'|'.join(get_args(Reduction))}))?", rest)
    assert match is not None  # the pattern takes any text
    reduction: Reduction = "abs" if match[2] == "abs" else "sum"
    return Estimator(Captum(match[1], layer or None), reduction)
