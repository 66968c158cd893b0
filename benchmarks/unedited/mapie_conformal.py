from mapie.classification import SplitConformalClassifier
from mapie.regression import SplitConformalRegressor
from sklearn.ensemble import RandomForestRegressor
from work import Work, X, forest, y

regressor = RandomForestRegressor(50, random_state=0).fit(X[:1500], X[:1500, 3])
sets = SplitConformalClassifier(forest().fit(X[:1500], y[:1500]), prefit=True)
spans = SplitConformalRegressor(regressor, prefit=True)
work = Work()
sets.conformalize(X[1500:3000], y[1500:3000])
spans.conformalize(X[1500:3000], X[1500:3000, 3])
for first in range(0, 12000, 60):
    work.keep(*sets.predict_set(X[first : first + 60]))
    work.keep(*spans.predict_interval(X[first : first + 60]))
work.end()
