from mlxtend.classifier import EnsembleVoteClassifier, StackingCVClassifier
from sklearn.linear_model import LogisticRegression
from work import Work, X, forest, y
from xgboost import XGBClassifier

parts = [forest(50), XGBClassifier(n_estimators=50, n_jobs=1)]
stack = StackingCVClassifier(
    parts, LogisticRegression(), use_probas=True, random_state=0
)
work = Work()
for model in (stack, EnsembleVoteClassifier(parts, voting="soft")):
    work.calls(model.fit(X[:1500], y[:1500]).predict_proba, X, 300, 40)
work.end()
