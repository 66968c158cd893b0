"""Ray Data: batches through actors; ``test_distributed_dask.py`` kills a worker."""

from __future__ import annotations

import shutil
import tempfile

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="needs skforge[ray]")
pytest.importorskip("ray.data", reason="needs skforge[ray]")
pytest.importorskip("pandas")

from skforge.distributed.ray import Predictor, predict  # noqa: E402
from skforge.exceptions import InvalidInputError  # noqa: E402
from tests.distributed_tools import (  # noqa: E402
    categorical_model,
    named_model,
    same_bits,
    table,
)

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def cluster():
    folder = tempfile.mkdtemp(prefix="ray-")  # short: sockets lie in it
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=150 << 20,
        _temp_dir=folder,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def test_a_dataset_with_names_missing_values_and_an_id(cluster):
    frame = table().assign(id=np.arange(len(table())))
    dataset = ray.data.from_pandas([frame[k : k + 120] for k in range(0, 600, 120)])
    scored = predict(
        named_model(),
        dataset,
        method="predict_proba",
        keep=["id"],
        batch_size=64,
        compute=ray.data.ActorPoolStrategy(size=1),
    )
    found = scored.to_pandas().sort_values("id")
    names = ["probability_high", "probability_low", "probability_mid"]
    assert list(found) == ["id", *names]
    assert found["id"].tolist() == list(range(len(frame)))
    same_bits(found[names].to_numpy(np.float64), named_model().predict_proba(table()))


def test_categories_of_catboost(cluster):
    fast, rows, wanted = categorical_model()
    found = predict(fast, ray.data.from_pandas(rows)).to_pandas()
    same_bits(found["prediction"].to_numpy(), wanted)


def test_what_is_no_dataset_is_refused():
    with pytest.raises(InvalidInputError) as error:
        predict(named_model(), table())
    assert str(error.value) == (
        "dataset must be a ray.data.Dataset. Got DataFrame instead; "
        "ray.data.from_pandas, for example, makes one."
    )


def test_a_model_in_the_object_store(cluster):
    from skforge.distributed import pack

    call = Predictor(ray.put(pack(named_model())), "predict_proba", keep=False)
    found = call(table())
    same_bits(found.to_numpy(), named_model().predict_proba(table()))
