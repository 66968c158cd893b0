"""Predict Ray datasets, with a callable class for ``map_batches``.

::

    from skforge.distributed.ray import predict

    scored = predict(fast, dataset, method="predict_proba", keep=["id"])
    scored.write_parquet("scores")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from skforge._docs import documented
from skforge.distributed._artifact import Job, KeepEstimator, Packable, job
from skforge.exceptions import InvalidInputError
from skforge.prediction.answers import Array

__all__ = ["Predictor", "predict"]


@documented(job)
def predict(
    model: Packable,
    dataset: Any,
    *,
    method: str = "predict",
    columns: Sequence[str] | None = None,
    keep: bool | Sequence[str] = True,
    n_jobs: int | None = 1,
    keep_estimator: KeepEstimator = "auto",
    batch_format: str = "numpy",
    **options: Any,
) -> Any:
    """Return a lazy dataset with predictions; Ray's object store gets the model once.

    Parameters
    ----------
    dataset : ray.data.Dataset
        Rows.
    method, columns, keep, n_jobs, keep_estimator
        See :class:`Predictor`.
    batch_format : {"numpy", "pandas", "pyarrow"}, default="numpy"
        Format of the batches; use "pandas" for categorical columns.
    **options
        Passed to ``map_batches``: ``compute``, ``batch_size``, ``num_cpus``, ...

    Returns
    -------
    ray.data.Dataset

    Raises
    ------
    InvalidInputError
        If the model lacks the method, or ``dataset`` is not a Ray dataset.
    """
    import ray

    if not isinstance(dataset, ray.data.Dataset):
        raise InvalidInputError(
            f"dataset must be a ray.data.Dataset. Got {type(dataset).__name__} "
            "instead; ray.data.from_pandas, for example, makes one."
        )
    work = job(model, method, n_jobs, keep_estimator)
    return dataset.map_batches(
        Predictor,
        fn_constructor_args=(ray.put(work),),
        fn_constructor_kwargs={"columns": columns, "keep": keep},
        batch_format=batch_format,
        udf_modifying_row_count=False,
        **options,
    )


@documented(job)
class Predictor:
    """A callable class for ``map_batches`` that adds predictions to each batch.

    The model is compiled with the first rows; actors and tasks of one process share it.

    Parameters
    ----------
    model : CompiledForest, Artifact or path
        A fitted model, a ``.skforge`` file, or preferably an artifact from
        :func:`skforge.distributed.pack`, which is smaller to send. An ``ObjectRef`` of
        any of these is fetched.
    columns : sequence of str, default=None
        The feature columns in the model's order, or one column that holds them all as a
        tensor. None uses the feature names the model was trained with, or all columns
        if it has none.
    keep : bool or sequence of str, default=True
        Input columns to return with the predictions: all, none or those named. Leaving
        out the features saves storage.
    n_jobs : int or None, default=1
        Threads of one actor. Ray gives an actor one core by default; with
        ``num_cpus=k``, use k.

    Raises
    ------
    InvalidInputError
        If the model lacks the method; when called, if the columns are not its features.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> from skforge import CompiledForest
    >>> from skforge.distributed import pack
    >>> from skforge.distributed.ray import Predictor
    >>> tree = DecisionTreeRegressor().fit([[0.0], [1.0]], [3.0, 4.0])
    >>> artifact = pack(CompiledForest(tree).fit([[0.0]]))
    >>> Predictor(artifact)({"x": np.array([1.0, 0.0])})
    {'x': array([1., 0.]), 'prediction': array([4., 3.])}
    >>> dataset.map_batches(                                    # doctest: +SKIP
    ...     Predictor, fn_constructor_kwargs={"model": artifact}
    ... )
    """

    def __init__(
        self,
        model: Any,
        method: str = "predict",
        *,
        columns: Sequence[str] | None = None,
        keep: bool | Sequence[str] = True,
        n_jobs: int | None = 1,
        keep_estimator: KeepEstimator = "auto",
    ) -> None:
        if any("ObjectRef" in base.__name__ for base in type(model).__mro__):
            import ray

            model = ray.get(model)
        if not isinstance(model, Job):
            model = job(model, method, n_jobs, keep_estimator)
        self._job: Job = model
        self._columns = columns
        self._keep = keep

    def __call__(self, batch: Any) -> Any:
        """Return a batch with its predictions, in the same format.

        Parameters
        ----------
        batch : dict of str to ndarray, pandas.DataFrame or pyarrow.Table
            Rows.

        Returns
        -------
        dict of str to ndarray, pandas.DataFrame or pyarrow.Table
            The kept columns and ``prediction``, or one column for each value, such as
            ``probability_<class>``.
        """
        is_table = hasattr(batch, "column_names")
        names = list(batch.column_names if is_table else batch)
        inputs, values = self._kept(names), self._values(batch, names)
        if isinstance(batch, dict):
            return {name: batch[name] for name in inputs} | values
        if not is_table:
            return batch[inputs].assign(**values)
        table = batch.select(inputs)
        for name, value in values.items():
            table = table.append_column(name, [value])
        return table

    def _kept(self, names: list[str]) -> list[str]:
        if self._keep is True:
            return names
        inputs = list(self._keep or ())
        missing = [name for name in inputs if name not in names]
        if missing:
            raise InvalidInputError(
                f"keep names {', '.join(map(repr, missing))}, but the dataset has "
                f"only the columns {', '.join(map(repr, names))}."
            )
        return inputs

    def _values(self, batch: Any, names: list[str]) -> dict[str, Array]:
        work, answer = self._job, self._job.answer
        tensor = self._tensor(batch, names)
        if tensor is not None:
            if tensor.ndim != 2:
                tensor = tensor.reshape(len(tensor), -1)
            work.check_width(tensor.shape[1])
            values = work.of_rows(tensor)
        else:
            values = work.of_frame(_frame(batch, work.columns_of(names, self._columns)))
        if answer.width is None:
            return {answer.names[0]: values}
        return dict(zip(answer.names, map(np.ascontiguousarray, values.T), strict=True))

    def _tensor(self, batch: Any, names: list[str]) -> Array | None:
        columns = names if self._columns is None else list(self._columns)
        if not isinstance(batch, dict) or len(columns) != 1:
            return None
        column = batch.get(columns[0])
        return column if isinstance(column, np.ndarray) and column.ndim > 1 else None


def _frame(batch: Any, columns: list[str]) -> Any:
    from pandas import DataFrame

    if isinstance(batch, dict):
        return DataFrame({name: batch[name] for name in columns})
    if hasattr(batch, "column_names"):
        return batch.select(columns).to_pandas()
    return batch[columns]
