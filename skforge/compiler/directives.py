"""Where the directives stood in earlier versions, whose pickles name this module."""

from skforge.compiler.schedule.directives import *  # noqa: F403
