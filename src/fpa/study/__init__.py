"""Whole studies: a recipe, the models it trains, their evaluations, and the folder that holds them.

`run.run_study` makes one, `read.read_study` reads it back.
"""
