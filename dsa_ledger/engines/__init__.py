"""Engine rules by version: they answer, they never post."""
