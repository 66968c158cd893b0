from lightgbm import LGBMClassifier
from sklearn.inspection import partial_dependence, permutation_importance
from work import Work, X, y
from xgboost import XGBClassifier

rows, classes = X[:3000], y[:3000]
work = Work()
for kind, quiet in ((XGBClassifier, {}), (LGBMClassifier, {"verbose": -1})):
    model = kind(n_estimators=100, n_jobs=1, **quiet).fit(X[:1500], y[:1500])
    shuffled = permutation_importance(model, rows, classes, random_state=0)
    work.keep(shuffled.importances)
    for feature in range(4):
        drawn = partial_dependence(model, rows, [feature], grid_resolution=20)
        work.keep(drawn.average)
work.end()
