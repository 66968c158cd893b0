import optuna
from lightgbm import Dataset, train
from sklearn.metrics import log_loss
from work import Work, X, y

work = Work()


def objective(trial: optuna.Trial) -> float:
    options = {
        **{"objective": "binary", "verbosity": -1, "num_threads": 1, "seed": 0},
        "num_leaves": trial.suggest_int("num_leaves", 2, 64),
        "lambda_l2": trial.suggest_float("lambda_l2", 1e-8, 10.0, log=True),
        "feature_fraction": trial.suggest_float("feature_fraction", 0.4, 1.0),
    }
    booster = train(options, Dataset(X[:3000], label=y[:3000]), 60)
    answer = booster.predict(X[3000:])
    work.keep(answer)
    return log_loss(y[3000:], answer)


optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
study.optimize(objective, n_trials=12)
work.keep(study.best_value)
work.end()
