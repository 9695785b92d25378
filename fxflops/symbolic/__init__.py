"""Closed forms give the cost of a model as polynomials in the sizes of its inputs. Other results are derived from closed forms."""
