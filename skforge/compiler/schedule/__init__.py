"""The scheduling language: directives, loop nests, legality, presets."""

from skforge.compiler.schedule.schedule import Schedule

# Files saved by earlier versions name it here.
__all__ = ["Schedule"]
