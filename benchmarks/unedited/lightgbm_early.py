import lightgbm as lgb
from work import Work, X, y

known = lgb.Dataset(X[:3000], label=y[:3000])
unseen = lgb.Dataset(X[3000:4000], label=y[3000:4000], reference=known)
options = {"objective": "binary", "verbosity": -1, "num_threads": 1, "seed": 0}
stop = lgb.early_stopping(20, verbose=False)
work = Work()
booster = lgb.train(options, known, 500, valid_sets=[unseen], callbacks=[stop])
best = booster.best_iteration
work.keep(best, booster.predict(X, num_iteration=best, num_threads=1))
work.calls(
    lambda rows: booster.predict(rows, num_iteration=best, nthread=1), X, 400, 100
)
work.end()
