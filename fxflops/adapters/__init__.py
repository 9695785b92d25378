"""Drop-in replacements for other counters: their names, signatures, return values and printed text, over fxflops's run."""
