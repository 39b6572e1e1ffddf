"""What an audit takes, before it starts."""

from typing import Any

import torch
from torch import nn

from fpa.auditing.auditor import audit_plan, prepare_audit
from fpa.engine.engine import Engine
from fpa.engine.estimate import Estimate
from fpa.evaluation.estimate import estimate_case
from fpa.evaluation.keywords import with_options
from fpa.evaluation.options import AuditOptions
from fpa.evaluation.quick import quickened
from fpa.evaluation.subject import opened
from fpa.models.hubs import Opened
from fpa.values import checked


@with_options(AuditOptions)
@checked
@torch.inference_mode(False)
def estimate_audit(model: nn.Module | Engine | Opened, data: Any, options: AuditOptions) -> Estimate:
    """What `audit` takes with the same arguments.

    Args:
        model: As for `audit`.
        data: As for `audit`.
        options: Each is a keyword.

    """
    network, options = opened(model, quickened(options))
    classes = model.classes if isinstance(model, Opened) else None
    case = prepare_audit(network, data, audit_plan(options), options, classes=classes)
    return estimate_case(case, None if options.overwrite else options.folder, name="audit")
