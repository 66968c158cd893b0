from flaml import AutoML
from work import Work, X, y

automl = AutoML()
automl.fit(
    *(X[:1500], y[:1500]),
    **{"task": "classification", "max_iter": 6, "time_budget": -1, "seed": 0},
    **{"estimator_list": ["rf", "lgbm"], "n_jobs": 1, "verbose": 0},
)
work = Work()
work.calls(automl.predict_proba, X, 600, 500)
work.end()
