"""The command `fpa list`: all that can be named, each with a line."""

import builtins
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fpa.errors import one_of, printable

ESTIMATORS = {
    "paper": "set: the paper's ten (random, ig, vg, sg, sqsg)",
    "baselines": "set: centre, edges, input, which know no model",
    "cam": "set: the three class activation maps",
    "twins": "set: blurred copies of the other maps; sg_abs~2 is one of them",
    "random": "random numbers",
    "vg_sum": "gradient of the output; _abs: of absolute values, vgx: times the input",
    "ig_sum": "integrated gradients, from the masked image; also ig_abs",
    "sg_sum": "SmoothGrad, the mean of noisy gradients; also sg_abs, sgx_sum, sgx_abs",
    "sqsg_sum": "squared SmoothGrad",
    "cam:gradcam": "Grad-CAM; cam:gradcam@LAYER names the layer",
    "cam:gradcam++": "Grad-CAM++",
    "cam:layercam": "LayerCAM",
    "centre": "a bump in the middle, the same for all images",
    "edges": "how much the image changes at a pixel",
    "input": "how far a pixel is from what removing it leaves",
    "captum:METHOD": "a method of Captum, such as captum:DeepLift or captum:LayerGradCam@LAYER",
    "maps:FILE": "maps that you computed: .npy, .npz, .safetensors or .pt",
    "truths": "set: the true effects and damaged copies, for images of a world",
    "module:function": "a function of your own",
}

SCORES = {
    "A": "area between the curves: least important first minus most important first",
    "aopc": "mean fall when the most important pixels go first (MoRF)",
    "aopc_lerf": "mean fall when the least important go first (LeRF)",
    "comprehensiveness": "fall of the probability without the most important pixels",
    "sufficiency": "fall of the probability with the most important pixels alone",
    "deletion": "area under the probability while important pixels are removed",
    "insertion": "area under the probability while important pixels are put back",
    "pixel_flipping": "area under the curve, most important first",
    "road": "A with ROAD's masking, which fills pixels from their neighbours",
    "faithfulness_correlation": "correlation of importance and fall, random sets of pixels",
    "sensitivity_n": "the same over sets of several sizes",
    "sds": "correlation of importance and fall, single cells of a grid of 4 x 4",
    "idsds": "the same on a model fine-tuned with such deletions",
    "infidelity": "squared error of the fall that a map predicts, random squares",
    "infidelity_scaled": "the same, each map scaled as suits it best",
    "max_sensitivity": "largest change of the map when the image hardly changes",
    "mprt_smooth": "how similar the map stays when layers are randomised",
    "mprt_efficient": "how much more complex it becomes on a randomised model",
    "pointing_game": "whether the largest value is on the object",
    "mass_accuracy": "share of the positive values that is on the object",
    "rank_accuracy": "share of the most important pixels that is on the object",
    "truth": "agreement with the true effects of cues and background, in a world",
    "truth_cues": "the same over the cues alone",
    "truth_unsigned": "the same with the sizes of the effects",
    "truth_log_odds": "the same with the effects on the log-odds",
    "truth_parts": "agreement inside of cues, part by part",
}

MASKINGS = {
    "constant": "one value: 0 after normalisation, or the one given",
    "black": "black, whatever the normalisation",
    "mean": "mean colour of the image",
    "minimum": "smallest value of each channel of the image",
    "maximum": "largest value of each channel of the image",
    "uniform": "random values between the extremes of the image",
    "blur": "a blurred copy of the image; --masking.sigma says how much",
    "bokeh": "a copy that is out of focus",
    "road": "weighted means of the neighbours and noise (ROAD)",
    "module:Class": "a masking of your own",
}

OUTPUTS = {
    "logit": "logit of the class; the default of evaluations, with centred beside it",
    "centred": "logit minus the mean of all logits; the default of audits",
    "margin": "logit minus the largest of the others",
    "log_odds": "logit minus the logsumexp of the others: log(p / (1 - p))",
    "probability": "probability of the class",
    "accuracy": "1 where the predicted class is the true one, else 0",
}

DATA = {
    "shapes": "eight textured shapes, 32 px, drawn from a seed; no download",
    "digits": "scikit-learn's handwritten digits at 32 px; no download",
    "cues": "scenes whose cues can be left out, so that true effects are known",
    "cues-redundant": "the same with two cues of which each is enough",
    "cues-joint": "the same with two cues that are both needed",
    "pets": "photos of Oxford-IIIT Pets with cards as cues; needs the photos",
    "cifar10": "CIFAR-10; needs its files in --data_root",
    "food101": "Food-101; needs its files in --data_root",
    "imagenet": "ImageNet; needs its files in --data_root",
    "folder:PATH": "your photos: one subfolder for each class, or none",
    "module:function": "a function of your own that returns images and labels",
}

MODELS = {
    "FILE.safetensors": "a model that fpa wrote",
    "torchvision:NAME": "a classifier of torchvision, with --weights DEFAULT or FILE",
    "timm:NAME": "a model of timm, with --weights DEFAULT or FILE",
    "hf:NAME": "an image classifier of Hugging Face, or hf:FOLDER",
    "module:function": "a function of your own that returns the model",
}


def list(kinds: builtins.list[str] = []) -> int:  # noqa: A001, B006
    """List what can be named: estimators, scores, maskings, outputs, data, models and recipes.

    Args:
        kinds: Some of estimators, scores, maskings, outputs, data, models, recipes; default: all.

    """
    for kind in kinds:
        one_of("kind", kind, KINDS)
    console = Console()
    for kind in kinds or KINDS:
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for name, line in KINDS[kind]().items():
            table.add_row(Text(f"  {printable(name)}", no_wrap=True), Text(printable(line)))
        console.print(Text(kind, style="bold"), table)
    return 0


def _with_others(known: Mapping[str, str], registered: Mapping[str, Any]) -> dict[str, str]:
    """What is known, and what somebody has registered besides: what its docstring begins with."""
    others = {name: each for name, each in registered.items() if name not in known}
    return {**known, **{name: _first_line(each) for name, each in others.items()}}


def _first_line(thing: Any) -> str:
    function = getattr(thing, "function", thing)
    return next(iter((function.__doc__ or "").strip().splitlines()), "")


def _scores() -> dict[str, str]:
    from fpa.scores import SCORES as REGISTERED

    return _with_others(SCORES, REGISTERED)


def _maskings() -> dict[str, str]:
    from fpa.masking import MASKINGS as REGISTERED

    return _with_others(MASKINGS, REGISTERED)


def _outputs() -> dict[str, str]:
    from fpa.engine.outputs import OUTPUTS as REGISTERED

    return _with_others(OUTPUTS, REGISTERED)


def _data() -> dict[str, str]:
    from fpa.data.sets import DATA_SETS

    return _with_others(DATA, DATA_SETS)


def _models() -> dict[str, str]:
    from fpa.models.saved import read_card, shipped_models

    shipped = {}
    for name in shipped_models():
        card = read_card(name)
        data = card.recipe.get("data", {}).get("name", "")
        trained = "no augmentation" if card.augmentation == "none" else card.augmentation
        shipped[name] = f"shipped: {card.architecture}, {data}, trained with {trained}"
    return {**shipped, **MODELS}


def _recipes() -> dict[str, str]:
    from fpa.study.recipe import recipe_description, recipe_names

    return {name: recipe_description(name) for name in recipe_names()}


KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "estimators": lambda: ESTIMATORS,
    "scores": _scores,
    "maskings": _maskings,
    "outputs": _outputs,
    "data": _data,
    "models": _models,
    "recipes": _recipes,
}
"""What there is, by kind."""
