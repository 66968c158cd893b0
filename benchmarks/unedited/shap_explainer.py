import shap
from lightgbm import LGBMClassifier
from work import Work, X, forest, y

booster = LGBMClassifier(n_estimators=50, n_jobs=1, verbose=-1)
work = Work()
for model in (forest(30), booster):
    explainer = shap.TreeExplainer(model.fit(X[:1500], y[:1500]))
    work.keep(explainer.shap_values(X[:100]), explainer.expected_value)
    work.calls(model.predict_proba, X, 100, 100)
    sampled = shap.PermutationExplainer(model.predict_proba, X[:20], seed=0)
    work.keep(sampled(X[:10], silent=True).values)
work.end()
