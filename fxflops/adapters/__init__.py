"""Drop-in faces of other counters: the same names, signatures, return values and unit strings, over fxflops's own run."""
