"""Calibration: kernels that measure a box, and the fits that turn measurements into coefficients.

Nothing here is imported by an estimate; numpy is allowed.
"""
