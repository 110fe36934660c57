"""What people already have, read and checked: launch commands, their YAML, start-up logs.

All of it is hostile text: it is never evaluated, no shell or environment expands it, and no path inside it is opened.
"""
