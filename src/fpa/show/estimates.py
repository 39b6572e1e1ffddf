"""What work takes, in words."""

from fpa.engine.estimate import Estimate, Stage
from fpa.errors import counted
from fpa.progress import duration
from fpa.show.words.reader import listed

SEVERAL = (8, 64)
"""Numbers of processes that the time is also given for."""


def estimate_text(estimate: Estimate) -> str:
    """Time, memory and disk, a line each."""
    lines = [f"time: {took(estimate)} on this machine ({estimate.device})"]
    if len(estimate.stages) > 1:
        each = [f"{stage.name} {about(stage.seconds_with())}" for stage in estimate.stages]
        lines.append(f"  {listed(each)}")
    passes = _passes(estimate)
    if passes:
        lines.append(f"  {passes}")
    several = [f"{number} processes {about(estimate.seconds_with(number))}" for number in SEVERAL]
    lines.append(f"with a device like this one for each: {', '.join(several)}")
    if any("steps" in stage.passes for stage in estimate.stages):
        lines[-1] += " (at best: what they tell each other in training is not counted)"
    lines.append(f"memory of a process: {size(estimate.memory) if estimate.memory else 'unknown'}")
    lines.append(f"disk: {size(estimate.disk)}")
    if any(stage.will_compile for stage in estimate.stages):
        lines.append("passes will be compiled, which makes them faster: they were timed as they are")
    lines.append("tables, figures and report come on top: some seconds, some megabytes")
    return "\n".join(lines)


def took(estimate: Estimate) -> str:
    """The time of one process."""
    return about(estimate.seconds, longer=estimate.longer)


def about(seconds: float, *, longer: bool = False) -> str:
    """A time that is not known exactly.

    >>> about(0.2), about(75.3), about(7260, longer=True)
    ('about 1 s', 'about 1 min 15 s', 'more than 2 h 1 min')
    """
    return f"{'more than' if longer else 'about'} {duration(max(round(seconds), 1))}"


def size(count: int) -> str:
    """Bytes for people.

    >>> size(1500), size(3 * 2**20), size(5 * 2**30)
    ('1 KiB', '3 MiB', '5.0 GiB')
    """
    if count >= 2**30:
        return f"{count / 2**30:.1f} GiB"
    unit = "MiB" if count >= 2**20 else "KiB"
    return f"{count / (2**20 if unit == 'MiB' else 2**10):.0f} {unit}"


def _passes(estimate: Estimate) -> str:
    """How many passes there are, of what kind."""
    totals = {kind: sum(_of(stage, kind) for stage in estimate.stages) for kind in _KINDS}
    shown = [f"{total:,} {_KINDS[kind]}" for kind, total in totals.items() if total]
    images = "" if estimate.images is None else f" for {counted(estimate.images)}"
    return f"{listed(shown)}{images}" if shown else ""


_KINDS = {"steps": "training steps", "gradients": "gradients", "forwards": "forward passes"}


def _of(stage: Stage, kind: str) -> int:
    return stage.passes.get(kind, 0)
