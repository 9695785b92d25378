"""What fxflops is measured by, and beside whom."""
