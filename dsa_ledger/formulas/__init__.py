"""Formulas: one pure function each, one return expression, the same for an int and for an int64 array."""
