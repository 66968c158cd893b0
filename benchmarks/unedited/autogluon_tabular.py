from autogluon.tabular import TabularPredictor
from work import Work, frame, y

few = {"num_cpus": 1, "verbosity": 0}
kinds = {"GBM": {}, "RF": {"n_estimators": 100}, "XT": {}, "CAT": {"iterations": 100}}
table = frame.assign(label=y)
predictor = TabularPredictor("label", path="made", verbosity=0)
predictor.fit(table[:1500], hyperparameters=kinds, **few)
work = Work()
work.keep(predictor.leaderboard(table, silent=True).sort_values("model").score_test)
predictor.persist()  # or each call would load its models from disk
work.calls(predictor.predict_proba, frame, 100, 100)
work.end()
