"""From an ``nn.Module`` to a ``GraphModule`` whose nodes carry ``nn_module_stack``."""

TRACERS = ("auto", "symbolic", "record")
