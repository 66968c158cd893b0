"""Dask: metadata, laziness, and a cluster of processes of which one is killed."""

from __future__ import annotations

import os

import numpy as np
import pytest

pytest.importorskip("dask", reason="needs skforge[dask]")
distributed = pytest.importorskip("distributed", reason="needs skforge[dask]")
pd = pytest.importorskip("pandas")

import dask.array as da  # noqa: E402
import dask.dataframe as dd  # noqa: E402
from dask.array.utils import assert_eq as assert_arrays  # noqa: E402
from dask.dataframe.utils import assert_eq as assert_frames  # noqa: E402
from scipy.sparse import csr_matrix  # noqa: E402

from skforge.distributed import pack  # noqa: E402
from skforge.distributed.dask import predict  # noqa: E402
from skforge.exceptions import InvalidInputError  # noqa: E402
from skforge.prediction.answers import as_array  # noqa: E402
from tests.distributed_tools import (  # noqa: E402
    NAMES,
    kill,
    many_rows,
    n_kept,
    named_model,
    quick_model,
    same_bits,
    slow_model,
    table,
    wait_for,
)

pytestmark = pytest.mark.xdist_group("dask")

METHODS = ["predict", "predict_proba", "predict_raw", "apply", "predict_contribs"]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=2,
            processes=True,
            dashboard_address=None,
            local_directory=str(tmp_path_factory.mktemp("dask")),
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def X():
    return many_rows(500)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", METHODS)
def test_arrays_have_the_metadata_they_announce(X, method):
    found = predict(slow_model(), da.from_array(X, chunks=(200, 3)), method=method)
    expected = as_array(getattr(slow_model(), method)(X))
    assert isinstance(found, da.Array)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.chunks[0] == (200, 200, 100)
    assert_arrays(found, expected, scheduler="sync")  # dtype, chunks and meta as well
    same_bits(found.compute(scheduler="sync"), expected)


def test_rows_of_unknown_number_and_blocks_without_any(X):
    blocks = da.from_array(X, chunks=(100, 4))
    blocks = blocks[blocks[:, 0] > blocks[:, 0].max() - 0.5]  # most blocks lose all
    found = predict(slow_model(), blocks, method="predict_proba")
    assert np.isnan(found.shape[0]) and found.shape[1] == 3
    rows = X[X[:, 0] > X[:, 0].max() - 0.5]
    same_bits(found.compute(scheduler="sync"), slow_model().predict_proba(rows))


def test_sparse_blocks(X):
    X = np.where(X > 0.3, X, np.float32(0))
    blocks = da.from_array(X, chunks=(150, 4)).map_blocks(csr_matrix)
    found = predict(slow_model(), blocks, method="predict_raw")
    same_bits(found.compute(scheduler="sync"), quick_model().predict_raw(X))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", METHODS)
def test_frames_keep_index_and_divisions(method):
    frame = table().assign(id="a")[["tax", "id", "rooms", "age", "income"]]
    frame.index = frame.index * 3 + 5
    parts = dd.from_pandas(frame, npartitions=4)
    found = predict(named_model(), parts, method=method)
    assert found.divisions == parts.divisions
    expected = as_array(getattr(named_model(), method)(table()))
    assert_frames(found, found.compute(scheduler="sync"), scheduler="sync")
    computed = found.compute(scheduler="sync")
    assert computed.index.equals(frame.index)
    if method == "predict":
        assert found.name == "prediction"
        assert computed.tolist() == expected.tolist()
    else:
        same_bits(computed.to_numpy(), expected)


def test_columns_by_name_and_parts_without_rows():
    frame = table().rename(columns=str.upper)
    parts = dd.from_pandas(frame, npartitions=3)
    parts = parts[frame.AGE.nlargest(3).min() < parts.AGE]
    found = predict(
        named_model(), parts, method="predict_proba", columns=[n.upper() for n in NAMES]
    )
    rows = table()[table().age > table().age.nlargest(3).min()]
    same_bits(
        found.compute(scheduler="sync").to_numpy(), named_model().predict_proba(rows)
    )


def test_names_in_the_graph_are_the_same_every_time(X):
    blocks = da.from_array(X, chunks=(200, 4))
    one = predict(slow_model(), blocks)
    assert one.name == predict(pack(slow_model()), blocks).name
    assert one.name != predict(slow_model(), blocks + 1).name
    assert one.name != predict(slow_model(), blocks, method="apply").name


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda: many_rows(3),
            "X must be a Dask array or data frame. Got numpy.ndarray instead; for "
            "data in memory, call model.predict(X).",
        ),
        (
            lambda: da.zeros((9, 5)),
            "The model was trained on 4 features, but the rows have 5 columns.",
        ),
        (
            lambda: da.zeros(9),
            "X must be two-dimensional, with one row per sample. Got 1 dimension(s) "
            "instead.",
        ),
        (
            lambda: dd.from_pandas(table().age, npartitions=1),
            "X must be a Dask array or data frame. Got a Series of Dask instead, "
            "which has no columns.",
        ),
    ],
)
def test_what_has_no_rows_is_refused_before_anything_runs(make, why):
    with pytest.raises(InvalidInputError) as error:
        predict(slow_model(), make())
    assert str(error.value) == why


def test_a_worker_loads_a_model_once_when_its_rows_come(client):
    X = many_rows(4000)
    artifact = pack(named_model())
    frame = dd.from_pandas(pd.DataFrame(X, columns=NAMES), npartitions=16)
    found = predict(artifact, frame, method="predict_proba")
    assert set(client.run(n_kept).values()) == {0}
    expected = named_model().predict_proba(pd.DataFrame(X, columns=NAMES))
    same_bits(client.compute(found).result().to_numpy(), expected)
    assert [*client.run(n_kept).values()] == [1, 1]


@pytest.mark.slow
def test_a_killed_worker_costs_no_row(client):
    X = many_rows(240_000)
    blocks = da.from_array(X, chunks=(10_000, 4))
    raw = predict(slow_model(), blocks, method="predict_raw").to_delayed().ravel()
    pids = client.run(os.getpid)
    parts = client.compute(list(raw))

    def in_the_middle():
        done = sum(part.done() for part in parts)
        busy = [worker for worker, tasks in client.processing().items() if tasks]
        return 0 < done < len(parts) and busy

    victim = pids[wait_for(in_the_middle)[0]]
    kill([victim])
    assert not all(part.done() for part in parts)
    same_bits(np.concatenate(client.gather(parts)), quick_model().predict_raw(X))
    wait_for(lambda: len(client.scheduler_info()["workers"]) == 2)
    assert victim not in client.run(os.getpid).values()
