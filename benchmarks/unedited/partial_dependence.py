import matplotlib
from sklearn.inspection import PartialDependenceDisplay
from work import Work, X, forest, y

matplotlib.use("Agg")
model = forest().fit(X[:1500], y[:1500])
work = Work()
drawn = PartialDependenceDisplay.from_estimator(
    model, X, [0, 1, 2, 3], grid_resolution=20
)
work.keep(*(part["average"] for part in drawn.pd_results))
work.end()
