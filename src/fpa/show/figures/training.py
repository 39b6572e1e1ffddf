"""How the models of a study were trained."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fpa.errors import InputError
from fpa.evaluation.result import Results
from fpa.show.figures import style
from fpa.show.names import model_looks

_HISTORY = {"loss": "Training loss", "accuracy": "Training accuracy", "test_accuracy": "Test accuracy"}


def histories(results: Results) -> list[str]:
    """The columns of training histories that at least one model has."""
    return [
        column for column in _HISTORY if any(model.history.get(column) for model in results.models.values())
    ]


@style.styled
def training_history(results: Results) -> Figure:
    """Loss and accuracies after every epoch: a panel each, a line per model that was trained here."""
    columns = histories(results)
    if not columns:
        raise InputError(f"{results.name!r} has no training history: its models were trained elsewhere")
    looks = model_looks(results.models)
    figure = Figure(figsize=(max(3.2 * len(columns), 3.4), 2.7))
    axes = figure.subplots(1, len(columns), squeeze=False)[0]
    for axis, column in zip(axes, columns, strict=True):
        for name, model in results.models.items():
            values = [np.nan if value is None else value for value in model.history.get(column, [])]
            epochs = model.history.get("epoch", [])[: len(values)]
            # A single epoch is a point, which a line would not show.
            marker = looks[name].marker if len(values) < 2 else ""
            axis.plot(
                epochs,
                values,
                color=looks[name].colour,
                linestyle=looks[name].dashes,
                marker=marker,
                label=name,
            )
        axis.set_title(_HISTORY[column])
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
        if column != "loss":
            axis.yaxis.set_major_formatter(PercentFormatter(1))
        axis.grid(axis="y", color=style.PALE, linewidth=0.6)
    figure.supxlabel("Epoch", fontsize=9)
    labelled = {style.plain_model(name): look for name, look in looks.items()}
    style.legend(figure, style.legend_title(results), labelled)
    return figure
