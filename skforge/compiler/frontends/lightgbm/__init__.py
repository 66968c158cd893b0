"""Models and files of LightGBM."""

from skforge.compiler.frontends.lightgbm import model

__all__ = ["model"]
