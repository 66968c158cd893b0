from sklearn.inspection import permutation_importance
from work import Work, X, forest, y

model = forest().fit(X[:1500], y[:1500])
work = Work()
work.keep(permutation_importance(model, X, y, random_state=0).importances)
work.end()
