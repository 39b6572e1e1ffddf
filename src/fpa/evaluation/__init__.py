"""Explain, perturb, score and store, block by block, and read the results back.

Reading needs neither torch nor the model.
"""
