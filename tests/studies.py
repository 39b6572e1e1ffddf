"""Results made up of plausible numbers, for the tests of tables, figures and the report."""

from dataclasses import replace

import numpy as np

from fpa.evaluation.description import Description
from fpa.evaluation.evaluation import Evaluation
from fpa.evaluation.examples import Examples
from fpa.evaluation.result import Result, Results
from fpa.scores.fidelity import common_images

ESTIMATORS = {
    "random": ("baseline", "Random", False, None),
    "ig_sum": ("signed", "IG", False, "sum"),
    "ig_abs": ("unsigned", "IG", False, "abs"),
    "vg_abs": ("unsigned", "VG", False, "abs"),
    "vgx_sum": ("signed", "VG", True, "sum"),
    "vgx_abs": ("unsigned", "VG", True, "abs"),
    "sg_abs": ("unsigned", "SG", False, "abs"),
    "sgx_sum": ("signed", "SG", True, "sum"),
    "sgx_abs": ("unsigned", "SG", True, "abs"),
    "sqsg_sum": ("unsigned", "SQ-SG", False, "sum"),
}
SIGNED = {name: sign == "signed" for name, (sign, *_) in ESTIMATORS.items() if sign != "baseline"}
CLASSES = ["disc", "square", "diamond", "a <b>bold</b> & odd name"]
A = {
    "title": "area between the LIF and the MIF curve, in percent",
    "source": "the paper",
    "higher_is_better": True,
}


def made_up_study(
    images=40, examples=4, size=16, name="shapes", variants=("none", "rectangle", "fpa"), **plan
):
    """A study with a recipe; further keyword arguments change the plan."""
    rng = np.random.default_rng(0)
    fractions = np.arange(21) / 20
    plan = made_up_plan() | plan
    evaluations = {}
    for variant in variants:
        unmasked = rng.uniform(4, 9, images)
        mif, lif, importance = {}, {}, {}
        for place, estimator in enumerate(ESTIMATORS):
            signed = SIGNED.get(estimator, False)
            strength = 1 + 0.15 * place
            bump = 1.5 if signed and variant == "fpa" else 0.0
            sharper = 4.0 if variant != "fpa" and signed else 2.0
            fall = (1 - fractions) ** (sharper * strength)
            keep = 1 - fractions**strength
            if estimator == "random":
                fall = keep = (1 - fractions) ** 2
            noise = rng.normal(0, 0.05, (2, images, 21)) * (fractions > 0) * (fractions < 1)
            mif[estimator] = unmasked[:, None] * (fall + noise[0])
            lif[estimator] = unmasked[:, None] * (keep + bump * fractions * (1 - fractions) + noise[1])
            line = np.linspace(-1 if signed else 0, 1, size * size)
            importance[estimator] = line**3 * strength
        labels = rng.integers(0, 4, images)
        targets = np.where(np.arange(images) % 20 == 7, (labels + 1) % 4, labels)
        evaluations[variant] = Evaluation(
            fractions, np.arange(images), labels, targets, unmasked=unmasked, mif=mif, lif=lif,
            importance=importance,
        )  # fmt: skip
    keep = common_images(*(evaluation.unmasked for evaluation in evaluations.values()))
    models = {}
    for variant, evaluation in evaluations.items():
        maps = {name: rng.normal(0, 1, (examples, size, size)).astype(np.float32) for name in ESTIMATORS}
        maps = {key: value if SIGNED.get(key) else np.abs(value) for key, value in maps.items()}
        epochs = np.arange(1, 6)
        history = {
            "epoch": epochs.tolist(),
            "learning_rate": (0.1 / epochs).tolist(),
            "loss": (2 / epochs).tolist(),
            "accuracy": (1 - 0.5 / epochs).tolist(),
            "test_accuracy": [None, 0.6, None, None, 0.93],
            "images_per_second": [1000.0] * 5,
        }
        pictures = rng.integers(0, 255, (examples, 3, size, size)).astype(np.uint8)
        shown = Examples(
            pictures, np.arange(examples), evaluation.labels[:examples], evaluation.targets[:examples],
            maps=maps, ranks=ranks_of(maps, plan["features"]), fill=np.full_like(pictures, 128),
            foreground=rng.random((examples, size, size)) < 0.3,
        )  # fmt: skip
        about = {
            "format": 2,
            "plan": plan,
            "model": "fingerprint",
            "block": images,
            "images": images,
            "classes": CLASSES,
            "name": variant,
            "augmentation": variant,
            "training": {"p": 0.5, "p1_max": 0.25, "p2": 0.1, "s_max": 3} if variant == "fpa" else {},
            "made_with": {"forms": {"gradients": "float32, folded", "forwards": "float32, folded, compiled"}},
        }
        models[variant] = Result.of(
            variant, evaluation, Description.from_json(about), keep=keep, examples=shown, history=history
        )
    about = {"versions": {"fpa": "0.1.0", "torch": "2.11"}, "device": "cpu", "seeds": {"seed": 0}}
    about["timings"] = {"none": {"train": 31.0, "evaluate": 12.5}, "tables": 0.4}
    recipe = {"name": name, "model": "resnet-small", "seed": 0, "data": {"name": name}}
    return Results(name, models, about, recipe=recipe)


def made_up_evaluation(name="net", augmentation="", data="photos", **arguments):
    """A single model that was trained elsewhere; arguments as for a study."""
    study = made_up_study(variants=("none",), **arguments)
    made_with = {"versions": {"torch": "2.11"}, "device": "cpu", "forms": {"forwards": "float32, folded"}}
    own = {"name": name, "augmentation": augmentation, "data": data, "training": {}}
    first = described(study.first, **own, made_with=made_with, timings={"evaluate": 12.5})
    return replace(first, name=name, history={}).results


def described(model, **changes):
    """The model with another evaluation.json; what is not changed stays as it was, and so do the numbers.

    An estimator of a changed plan that has no label is shown under its name.
    """
    about = model.about | changes
    for name, parts in about["plan"]["estimators"].items():
        parts.setdefault("label", {"key": name, "name": name})
    return replace(model, description=Description.from_json(about))


def made_up_plan():
    """The plan of the paper's ten estimators."""
    estimators = {
        name: {
            "raw": {"name": label.lower().replace("-", "")},
            "reduction": reduction or "sum",
            "times_input": prime,
            "sign": sign,
            "label": {"key": name, "name": label, "prime": prime, "reduction": reduction},
        }
        for name, (sign, label, prime, reduction) in ESTIMATORS.items()
    }
    for name in ("ig_sum", "ig_abs"):
        estimators[name]["raw"] = {"name": "ig", "steps": 200, "reference": "masked"}
    return {
        "estimators": estimators,
        "masking": {"name": "constant", "value": 0.0},
        "maskings": {},
        "features": "pixels",
        "fractions": [step / 20 for step in range(21)],
        "outputs": ["logit"],
        "divided": {"logit": True},
        "scores": {"A": A},
        "seed": 0,
    }


def ranks_of(maps, features):
    """The place of every pixel, or of the patch it is in, in the LIF order."""
    if features == "pixels":
        return {
            name: values.reshape(len(values), -1).argsort(1).argsort(1).reshape(values.shape).astype(np.int32)
            for name, values in maps.items()
        }
    ranks = {}
    for name, values in maps.items():
        height, width = values.shape[1:]
        patches = (
            np.arange(height)[:, None] // features * -(-width // features) + np.arange(width) // features
        )
        order = np.array(
            [[image[patches == patch].mean() for patch in range(patches.max() + 1)] for image in values]
        )
        ranks[name] = order.argsort(1).argsort(1)[:, patches].astype(np.int32)
    return ranks


def with_plan(results, **changes):
    """The results with another plan; what it does not touch stays as it was."""
    models = {name: described(model, plan=model.plan | changes) for name, model in results.models.items()}
    return replace(results, models=models)


def with_signs(results, sign):
    """The results with all explanations of one sign; the pairs stay as they were."""
    estimators = {
        name: parts if parts["sign"] == "baseline" else parts | {"sign": sign}
        for name, parts in results.first.plan["estimators"].items()
    }
    return with_plan(results, estimators=estimators)


def with_rivals(results):
    """The results with a centre map as good as SG_abs of the first model, and a twin of IG_sum."""
    plan, models = results.first.plan, {}
    for name, parts in plan["estimators"].items():
        parts.setdefault("raw", {"name": name})
        parts["reduction"] = parts["label"]["reduction"]
    centre = {"sign": "baseline", "raw": {"name": "centre"}, "label": {"key": "centre", "name": "Centre"}}
    blurred = {"sign": "twin", "blur": "side/16", "label": {"key": "ig_sum~", "name": "blurred IG"}}
    twin = plan["estimators"]["ig_sum"] | blurred
    plan = plan | {"estimators": plan["estimators"] | {"centre": centre, "ig_sum~": twin}}
    source = results.first.evaluation
    rng = np.random.default_rng(2)
    more = {"centre": "sg_abs", "ig_sum~": "ig_sum"}
    for name, model in results.models.items():
        old, sides = model.evaluation, {}
        for side in ("mif", "lif"):
            curves = getattr(old, side)
            own = {
                new: (getattr(source, side) if new == "centre" else curves)[of] for new, of in more.items()
            }
            own = {
                key: each + rng.normal(0, 0.05, each.shape) * (each < each[:, :1])
                for key, each in own.items()
            }
            sides[side] = curves | own
        importance = old.importance | {new: old.importance[of] for new, of in more.items()}
        description = described(model, plan=plan).description
        models[name] = Result.of(
            name, replace(old, importance=importance, **sides), description, history=model.history
        )
    return replace(results, models=models)


def with_score(results, name="depth", higher_is_better=True, title="how deep it goes", source="Doe 2030"):
    """The results with a further score, whose mean grows with the place of the estimator."""
    rng = np.random.default_rng(1)
    described = {"title": title, "source": source, "higher_is_better": higher_is_better}
    models = {}
    for key, model in results.models.items():
        evaluation = model.evaluation
        values = {
            estimator: rng.normal(0.01 * place, 0.001, len(evaluation.indices))
            for place, estimator in enumerate(evaluation.mif)
        }
        evaluation = replace(evaluation, values=evaluation.values | {name: values})
        models[key] = replace(model, evaluation=evaluation)
    scores = results.first.plan["scores"] | {name: described}
    return with_plan(replace(results, models=models), scores=scores)
