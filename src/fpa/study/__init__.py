"""Whole studies: a recipe, the models it trains, their evaluations, and the folder that holds them.

Use `fpa.load_recipe`, `fpa.run_study` and `fpa.read_results`, which reads single evaluations too.
"""
