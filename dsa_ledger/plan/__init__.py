"""What fits, which layout wins, what breaks first, and the nearest change that would make it fit.

Every answer is a scenario that was estimated whole: a search tries scenarios, it has no arithmetic of its own.
"""
