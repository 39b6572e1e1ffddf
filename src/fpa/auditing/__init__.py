"""Whether the evaluation of explanations on a model can be trusted: evidence, a fixed rule, a verdict."""
