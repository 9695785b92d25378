"""Observe the calls of a model's run, and trace the model into a ``GraphModule`` whose nodes carry ``nn_module_stack``."""
