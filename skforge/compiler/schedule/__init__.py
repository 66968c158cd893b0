"""The scheduling language: directives, loop nests, legality, families, presets."""

from skforge.compiler.schedule.presets import PRESETS
from skforge.compiler.schedule.schedule import Schedule

__all__ = ["PRESETS", "Schedule"]
