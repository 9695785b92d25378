"""Closed forms: the cost of a model as polynomials in the sizes of its inputs, and results derived from them."""
