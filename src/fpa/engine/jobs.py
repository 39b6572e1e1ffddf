"""The processes of one job: which one this is, and what the first one decides for all of them."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

from fpa.engine.devices import chosen_device
from fpa.errors import InputError, StoppedElsewhereError, first_line
from fpa.files import announce_step, launch

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """The processes that were started together."""

    rank: int = 0
    size: int = 1
    token: str = ""
    """What tells this job from others; all its processes have the same."""
    group: Any = None
    """Of torch.distributed, through which they speak; None where there is but one."""

    @property
    def first(self) -> bool:
        """Whether this is the process that decides."""
        return self.rank == 0

    def decided(self, decide: Callable[[], T]) -> T:
        """What the first process finds, known to all of them; if it finds an error, all of them stop.

        All processes must ask the same questions in the same order.
        """
        if self.size == 1:
            return decide()
        if not self.first:
            found, problem = self._told(None)
            if problem is not None:
                raise StoppedElsewhereError(problem)
            return found  # type: ignore[no-any-return]
        try:
            value = decide()
        except Exception as error:
            self._told((None, first_line(error)))
            raise
        self._told((value, None))
        return value

    def _told(self, words: tuple[Any, str | None] | None) -> Any:
        """What the first process says, which says it here."""
        import torch

        said = [words]
        try:
            torch.distributed.broadcast_object_list(said, src=0, group=self.group)
        except RuntimeError as error:
            remedy = "what is done is kept; run the same command again"
            raise InputError(f"a process of the job has ended ({first_line(error)}): {remedy}") from error
        return said[0]


def joined_job(device: str | None = None) -> Job:
    """The processes that torchrun, accelerate or srun have started with this one, joined by accelerate.

    `device` as a command has it: on a CPU they meet by gloo. Whatever the device is, what they say to each
    other goes by gloo too: a few words, for which processes may also share one GPU.
    """
    if launch().size == 1:
        return Job()
    import torch

    announce_step()
    check_joined("MASTER_ADDR" in os.environ)
    from accelerate.state import PartialState

    state = PartialState(cpu=chosen_device(device) == "cpu")
    check_joined(state.num_processes > 1)
    group = None
    if torch.distributed.get_backend() != "gloo":
        group = _gloo()
    unnamed = Job(state.process_index, state.num_processes, group=group)
    token = unnamed.decided(lambda: uuid4().hex)
    return Job(unnamed.rank, unnamed.size, token, group)


_GROUPS: dict[str, Any] = {}
"""The group by which processes speak whose default group is of their GPUs; made once."""


def _gloo() -> Any:
    import torch

    if "gloo" not in _GROUPS:
        _GROUPS["gloo"] = torch.distributed.new_group(backend="gloo")
    return _GROUPS["gloo"]


def check_joined(joined: bool) -> None:
    """Refuse to go on where the environment speaks of several processes that nothing has `joined`."""
    size = launch().size
    if size > 1 and not joined:
        remedy = "start it with torchrun or accelerate launch, or unset RANK and WORLD_SIZE"
        raise InputError(f"WORLD_SIZE={size} is set, but no launcher has joined the processes: {remedy}")
