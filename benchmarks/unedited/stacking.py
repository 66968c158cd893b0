from sklearn.ensemble import GradientBoostingClassifier, StackingClassifier
from sklearn.linear_model import LogisticRegression
from work import Work, X, forest, y

boosting = GradientBoostingClassifier(n_estimators=60, random_state=0)
parts = [("rf", forest(60)), ("gb", boosting)]
model = StackingClassifier(parts, LogisticRegression(), cv=3).fit(X[:1500], y[:1500])
work = Work()
for _ in range(30):
    work.calls(model.predict_proba, X, 12, 500)
work.end()
