"""scikit-learn's wrappers around forests: calibration, thresholds, votes, targets."""

from skforge.frontends.wrappers import model as model
