"""Whether the evaluation of explanations on a model can be trusted: evidence, a fixed rule, a verdict.

Use `fpa.audit`, which returns an `fpa.Audit`; it is a client of `evaluation`, and its rule is `rule.judge`.
"""
