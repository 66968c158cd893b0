"""``frozen_dataclass`` beside ``dataclass(frozen=True)``."""

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

import pytest

from skforge.runtime.frozen import frozen_dataclass


def _declared(decorate):
    @decorate
    class Base:
        name: str
        size: int = 3

        def __post_init__(self):
            if self.size < 0:
                raise ValueError("size")

    @decorate
    class Derived(Base):
        size: int = 4
        parts: list = field(default_factory=list, compare=False, repr=False)

        def double(self):
            return 2 * self.size

    return Base, Derived


Base, Derived = _declared(frozen_dataclass())
Base.__qualname__, Derived.__qualname__ = "Base", "Derived"  # as pickles find them
KNOWN = _declared(dataclass(frozen=True))


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("a",), {}),
        (("a", 1), {}),
        ((), {"size": 5, "name": "b"}),
        (("a",), {"size": 7}),
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_objects_are_those_of_a_frozen_dataclass(place, args, kwargs):
    ours, known = (kinds[place](*args, **kwargs) for kinds in ((Base, Derived), KNOWN))
    assert vars(ours) == vars(known)
    assert repr(ours).rpartition(".")[2] == repr(known).rpartition(".")[2]
    assert hash(ours) == hash(known)
    assert [f.name for f in fields(ours)] == [f.name for f in fields(known)]
    assert ours == replace(ours) and ours != replace(ours, size=99)
    assert ours != known and ours != "a"
    assert pickle.loads(pickle.dumps(ours)) == copy.deepcopy(ours) == ours


def test_fields_that_are_not_compared_make_no_difference():
    assert Derived("a", parts=[1]) == Derived("a", parts=[2])
    assert Derived("a").parts is not Derived("a").parts
    assert Base("a", 4) != Derived("a", 4)


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((), {}, "'name'"),
        ((), {"size": 3}, "'name'"),
        (("a", 1, [], 4), {}, "too many positional"),
        (("a",), {"name": "b"}, "multiple values .*'name'"),
        (("a",), {"colour": 1}, "'colour'"),
    ],
)
def test_wrong_arguments_are_named(args, kwargs, text):
    with pytest.raises(TypeError, match=text):
        Derived(*args, **kwargs)


def test_objects_are_checked_and_do_not_change():
    with pytest.raises(ValueError, match="size"):
        Derived("a", -1)
    one = Derived("a")
    with pytest.raises(FrozenInstanceError, match="'size'"):
        one.size = 1
    with pytest.raises(FrozenInstanceError, match="'name'"):
        del one.name
    assert one == Derived("a") and one.double() == 8


def test_methods_of_the_class_stay():
    @frozen_dataclass()
    class Named:
        name: str

        def __eq__(self, other):
            return self.name.lower() == other.name.lower()

        def __repr__(self):
            return f"<{self.name}>"

    assert Named("a") == Named("A") != Named("b")
    assert repr(Named("a")) == "<a>" and {Named("a"): 1}[Named("a")] == 1


def test_the_signature_is_that_of_a_dataclass():
    for ours, known in zip((Base, Derived), KNOWN, strict=True):
        mine, others = inspect.signature(ours), inspect.signature(known)
        assert [*mine.parameters] == [*others.parameters]
        defaults = [str(p.default) for p in mine.parameters.values()]
        known = [str(p.default) for p in others.parameters.values()]
        assert defaults == [text.replace("<factory>", "[]") for text in known]
