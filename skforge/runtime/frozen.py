"""Frozen dataclasses whose methods are shared, so that a class is made at once.

``dataclass(frozen=True)`` compiles six functions for each class. That took a quarter of
the time in which a new process loads a model and answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """Tell type checkers what a decorator does; only these need it."""
        return lambda decorator: decorator


T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen_dataclass(
    eq: bool = True, repr: bool = True
) -> Callable[[type[T]], type[T]]:
    """Make a class a frozen dataclass, as ``dataclass(frozen=True)`` does.

    All its fields are parameters of ``__init__``.
    """

    def decorate(cls: type[T]) -> Any:
        made: Any = dataclass(init=False, repr=False, eq=False)(cls)
        methods: dict[str, Any] = {"__init__": _init, "__signature__": _Signature()}
        methods |= {"__setattr__": _refuse, "__delattr__": _refuse}
        methods |= {"__setstate__": _set_state}
        methods |= {"__eq__": _eq, "__hash__": _hash} if eq else {}
        methods |= {"__repr__": _repr} if repr else {}
        for name, method in methods.items():
            if vars(cls).get(name) is None:  # not the class's own
                setattr(made, name, method)
        made.__frozen_fields__ = {known.name: known for known in fields(made)}
        return made

    return decorate


def _init(self: Any, /, *args: Any, **kwargs: Any) -> None:
    cls = type(self)
    known_fields = cls.__frozen_fields__
    given = dict(zip(known_fields, args, strict=False)) | kwargs
    wrong = len(given) < len(args) + len(kwargs)
    for name, known in known_fields.items():
        if name in given:
            self.__dict__[name] = given[name]
        elif known.default is not MISSING:
            self.__dict__[name] = known.default
        elif known.default_factory is not MISSING:
            self.__dict__[name] = known.default_factory()
        else:
            wrong = True
    if wrong or not given.keys() <= known_fields.keys():
        cls.__signature__.bind(*args, **kwargs)  # raises TypeError
    if (check := getattr(cls, "__post_init__", None)) is not None:
        check(self)


def _set_state(self: Any, state: Any) -> None:
    """Take the state of a pickle; those of skforge 0.1 have a list of values."""
    fields = self.__frozen_fields__
    values = state if type(state) is dict else dict(zip(fields, state, strict=False))
    self.__dict__.update(values)


class _Signature:
    """The signature of the class, made when it is asked for."""

    def __get__(self, instance: Any, cls: Any) -> Signature:
        return Signature(
            [_parameter(known) for known in cls.__frozen_fields__.values()]
        )


def _parameter(known: Field[Any]) -> Parameter:
    default: Any = known.default
    if default is MISSING:
        make: Any = known.default_factory
        default = Parameter.empty if make is MISSING else make()
    kind = Parameter.POSITIONAL_OR_KEYWORD
    return Parameter(known.name, kind, default=default, annotation=known.type)


def _refuse(self: Any, name: str, *value: Any) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to or delete field {name!r}")


def _compared(self: Any) -> tuple[Any, ...]:
    fields = self.__frozen_fields__.values()
    return tuple(getattr(self, known.name) for known in fields if known.compare)


def _eq(self: Any, other: Any) -> Any:
    if type(self) is not type(other):
        return NotImplemented
    return _compared(self) == _compared(other)


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _repr(self: Any) -> str:
    fields = self.__frozen_fields__.values()
    shown = [f"{f.name}={getattr(self, f.name)!r}" for f in fields if f.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"
