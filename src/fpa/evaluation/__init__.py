"""Explain, perturb, score and store, block by block: one plan, one loop, one kind of folder, one result.

Use `fpa.evaluate`, `fpa.make_plan` and `fpa.load_result`; reading results needs neither torch nor the model.
"""
