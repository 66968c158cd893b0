"""Where skforge 0.1.0 had its modules: a pickle of 0.1.0 asks for this one."""

import skforge.compiler.forest  # noqa: F401
