"""Reading checkpoints, and loading their models with the task and the dictionaries."""
