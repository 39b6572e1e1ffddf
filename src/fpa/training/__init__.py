"""Training with random masking: the augmentations, the batches, and one trainer for all who train.

Recipes and fine-tuning go through the same steps, checkpoints and history.
"""
