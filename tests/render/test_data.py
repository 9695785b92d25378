from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from fxflops.counting.uncounted import Missing
from fxflops.render.data import TreeRow


def test_rows_are_frozen(root):
    with pytest.raises(AttributeError):
        root.flops = 0


def test_own_missing_is_what_the_children_do_not_miss(root):
    child = root.children[0]._replace(missing=3)
    assert root._replace(missing=5, children=(child,)).own_missing == 2


def test_a_container_whose_children_ran_was_called():
    inner = TreeRow("0", "Linear", "layers.0", 2, 0, 0, 0)
    assert TreeRow("layers", "ModuleList", "layers", 0, 0, 0, 0, children=(inner,)).was_called
    assert not inner._replace(calls=0).was_called


def test_a_summary_is_complete_when_every_call_was_counted(vit):
    assert vit.complete
    assert not replace(vit, counted_calls=40).complete
    assert not replace(vit, missing=(Missing("mylib::scan", 1),)).complete


def test_rendering_modules_load_neither_rich_nor_tabulate():
    names = "columns, costs, data, fold, html, summary, table, text, tree"
    code = f"from fxflops.render import {names}; import sys; print({{'rich', 'tabulate'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
