"""Time from kernel tables: loading, evaluation, siblings, published steps, and the tables' errors."""
