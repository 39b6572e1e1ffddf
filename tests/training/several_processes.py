"""What each process of `torchrun` does in the test of several processes; its argument is a folder."""

import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from fpa import finetune, load_model
from fpa.cli.main import main
from fpa.study.recipe import load_recipe
from fpa.study.trainings import load_recipe_data, train
from fpa.training.batches import ArrayBatches
from fpa.training.run import Job
from fpa.training.settings import TrainingSettings
from fpa.training.trainer import train_jobs

FIELDS = {"training.epochs": 2, "training.milestones": [1], "training.checkpoint_seconds": 0.0}


def plain_job():
    """A model without batch norms, whose gradient does not depend on how a batch is shared."""

    def model():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 15 * 15, 8))

    settings = TrainingSettings(epochs=1, batch_size=32, learning_rate=0.01)
    return Job("plain", settings, 3, model=model, description={"model": "plain"})


def tuned_by_itself(data):
    """A model that learns its own predictions, whose batch norms keep their statistics."""
    return finetune(load_model("shapes-none"), data, epochs=1, batch_size=32, device="cpu")


def stopped(recipe, folder, data, at):
    """Train until a step in the middle of an epoch."""
    calls, usual = iter(range(100)), ArrayBatches.batch

    def stops(self, draws):
        if next(calls) == at:
            raise KeyboardInterrupt
        return usual(self, draws)

    ArrayBatches.batch = stops
    try:
        train(recipe, folder, data=data, device="cpu", variants=["fpa"])
    except KeyboardInterrupt:
        return
    finally:
        ArrayBatches.batch = usual
    raise AssertionError("not stopped")


if __name__ == "__main__":
    output = Path(sys.argv[1])
    command = ["train", "tiny", "--augment", "fpa", "--device", "cpu", "--quiet"]
    command += [f"--{name}={value}" for name, value in FIELDS.items()]
    assert main([*command, "--output", str(output / "whole")]) == 0
    recipe = load_recipe("tiny", FIELDS)
    data = load_recipe_data(recipe)
    stopped(recipe, output / "cut", data, at=8 + 5)
    train(recipe, output / "cut", data=data, device="cpu", variants=["fpa"])
    (trained,) = train_jobs([plain_job()], data, device="cpu")
    tuned = tuned_by_itself(data)
    if os.environ["RANK"] == "0":
        save_file(trained.model.state_dict(), output / "plain.safetensors")
        save_file(tuned.state_dict(), output / "tuned.safetensors")
