"""scikit-learn pipelines: preprocessing folded into the forest of the last step."""

from skforge.compiler.frontends.pipeline import model as model
