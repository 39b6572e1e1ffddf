"""Which of several processes this is: what torchrun, accelerate and Slurm say of it in the environment."""

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from fpa.errors import InputError, shortened

_PORTS = range(20_000, 30_000)
"""Where the processes of a Slurm step meet: below the ports that systems give to anybody who asks."""


class Launch(NamedTuple):
    """Which of several processes this is, and of how many; a launcher such as torchrun says it."""

    rank: int
    size: int
    local: int = 0
    """Which of those on this machine: it says which GPU is whose."""


def launch() -> Launch:
    """What the environment says about this process; alone, where it says nothing.

    Slurm's variables count inside an `srun` step of several tasks only. A batch script has some of them, too:
    a plain command in a job of eight tasks is one process, which does all of the work.
    """
    if "WORLD_SIZE" in os.environ:  # RANK alone may be a variable of anybody's
        found = _numbers(RANK="0", WORLD_SIZE="1")
        local = os.environ.get("LOCAL_RANK", "0")
        return Launch(*found, local=int(local) if _is_number(local) else 0)
    if "SLURM_PROCID" in os.environ and os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        found = _numbers(SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="1")
        local = os.environ.get("SLURM_LOCALID", "0")
        return Launch(*found, local=int(local) if _is_number(local) else 0)
    return Launch(0, 1)


def is_main_process() -> bool:
    """Whether this process may write: the only one, or the first of those that were started together."""
    return launch().rank == 0


def announce_step() -> None:
    """Inside an `srun` step of several tasks, set the variables that torchrun would: accelerate reads those.

    Who has set one of them keeps it.
    """
    found = launch()
    if found.size == 1 or "WORLD_SIZE" in os.environ:
        return
    tasks = re.match(r"\d+", os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    job = os.environ.get("SLURM_JOB_ID", "0")
    step = os.environ.get("SLURM_STEP_ID", "0")
    # Steps of a job that run side by side must not meet at one port.
    number = 31 * int(job if _is_number(job) else 0) + int(step if _is_number(step) else 0)
    usual = {
        "RANK": str(found.rank),
        "LOCAL_RANK": str(found.local),
        "LOCAL_WORLD_SIZE": tasks.group() if tasks else "1",
        "MASTER_ADDR": first_host(os.environ.get("SLURM_STEP_NODELIST", "")) or "127.0.0.1",
        "MASTER_PORT": str(_PORTS[number % len(_PORTS)]),
    }
    for name, value in usual.items():
        os.environ.setdefault(name, value)
    os.environ["WORLD_SIZE"] = str(found.size)


def first_host(nodes: str) -> str:
    """The first of the machines that Slurm lists; "" where it lists none.

    >>> first_host("gpu[007-012,31]"), first_host("a1,a2"), first_host("n[3,5]-ib,m1"), first_host("")
    ('gpu007', 'a1', 'n3-ib', '')
    """
    found = re.match(r"([^,\[]*)(?:\[(\w+)[^\]]*\])?([^,\[]*)", nodes)
    return "".join(part or "" for part in found.groups()) if found else ""


def _numbers(**usual: str) -> tuple[int, int]:
    """The place of a process and how many there are, from two variables, or the error that names them."""
    texts: Mapping[str, str] = {name: os.environ.get(name, text) for name, text in usual.items()}
    if all(map(_is_number, texts.values())):
        rank, size = map(int, texts.values())
        if rank < size:
            return rank, size
    said = " and ".join(f"{name}={shortened(text, 40)!r}" for name, text in texts.items())
    wanted = "must be whole numbers, the first below the second, as torchrun sets them"
    raise InputError(f"the environment variables {said} {wanted}: unset them to work in one process")


def _is_number(text: str) -> bool:
    # Digits alone: int() would also take "1_0" and " 1".
    return text.isascii() and text.isdigit() and len(text) < 10
