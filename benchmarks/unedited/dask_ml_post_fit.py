import dask
import dask.array as da
from dask_ml.wrappers import ParallelPostFit
from work import Work, X, forest, y

model = ParallelPostFit(forest()).fit(X[:1500], y[:1500])
rows = da.from_array(X, chunks=(500, 20))
work = Work()
with dask.config.set(scheduler="threads", num_workers=2):
    for _ in range(12):
        work.keep(model.predict_proba(rows).compute())
work.end()
