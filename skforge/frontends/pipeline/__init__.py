"""scikit-learn pipelines: preprocessing folded into the forest of the last step."""

from skforge.frontends.pipeline import model as model
