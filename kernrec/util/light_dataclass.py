"""Provide `dataclass(frozen=True)` without generated code, which would slow down the start of a command.

The standard decorator compiles six functions per class. Here, classes share their methods, and a class with many
instances gets its own `__init__`. The standard decorator processes a class only when `fields`, `replace` or `asdict`
need it. Slots and annotations such as `ClassVar` are not supported.
"""

import dataclasses
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

_Class = TypeVar("_Class", bound=type)

_MANY = 64
"""Number of instances after which a class gets its own, faster `__init__`."""


def _light(*, frozen: bool, eq: bool = True, kw_only: bool = False) -> Callable[[_Class], _Class]:
    assert frozen, "only frozen classes are made without generated code"

    def decorate(cls: _Class) -> _Class:
        # Without a docstring, the standard decorator would inspect the signature of `__init__`.
        cls.__doc__ = cls.__doc__ or cls.__name__
        # Python 3.14 creates `__annotations__` only on request.
        annotations = cls.__dict__.get("__annotations__")  # noqa: RUF063
        if annotations is None or any(hasattr(base, _FIELDS) for base in cls.__bases__):
            fields = {field.name: field for field in dataclasses.fields(_standard(cls))}
            names, described = tuple(fields), fields
        else:
            names = tuple(annotations)
            values = cls.__dict__
            described = {name: field for name in names if isinstance(field := values.get(name), dataclasses.Field)}
            setattr(cls, _FIELDS, _LaterFields(cls, described))
        methods: dict[str, Any] = {"__repr__": _repr, "__setattr__": _refuse, "__delattr__": _refuse}
        methods["__init__"] = _init(cls, names, described, kw_only)
        methods["__match_args__"] = names
        if eq:
            compared = [name for name in names if name not in described or described[name].compare]
            methods["__eq__"] = _equal(compared)
            methods["__hash__"] = _hash([n for n in names if _is_hashed(described.get(n))])
        for name, method in methods.items():
            if cls.__dict__.get(name) is None:  # In a class that defines `__eq__`, `__hash__` is None.
                setattr(cls, name, method)
        return cls

    return decorate


_FIELDS = "__dataclass_fields__"
_MISSING = dataclasses.MISSING


class _LaterFields:
    """Placeholder for the fields of a class. The standard decorator creates the fields on first use."""

    def __init__(self, cls: type, described: Mapping[str, "dataclasses.Field[Any]"]) -> None:
        """Create the placeholder. `described` contains the fields that are defined with `field(...)`."""
        self.cls, self.described = cls, described
        for name, field in described.items():
            if field.default is dataclasses.MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, field.default)

    def __get__(self, instance: Any, owner: type) -> Mapping[str, "dataclasses.Field[Any]"]:
        cls = self.cls
        if cls.__dict__.get(_FIELDS) is self:
            for name, field in self.described.items():
                setattr(cls, name, field)
            _standard(cls)
        made: Mapping[str, dataclasses.Field[Any]] = cls.__dict__[_FIELDS]
        return made


def _standard(cls: _Class) -> _Class:
    dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    return cls


def _is_hashed(field: "dataclasses.Field[Any] | None") -> bool:
    return field is None or (field.compare if field.hash is None else field.hash)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _light


def _init(
    cls: type, names: tuple[str, ...], described: Mapping[str, "dataclasses.Field[Any]"], kw_only: bool
) -> Callable[..., None]:
    every, count = frozenset(names), len(names)
    finish = hasattr(cls, "__post_init__")
    instances = iter(range(_MANY))

    def own() -> Callable[..., None]:
        return _own_init(getattr(cls, _FIELDS), finish, kw_only)

    def __init__(self: Any, *args: Any, **named: Any) -> None:  # noqa: N807
        if next(instances, None) is None and cls.__dict__["__init__"] is __init__:
            type.__setattr__(cls, "__init__", own())
        if args and kw_only:
            own()(self, *args, **named)  # Raise `TypeError` for wrong arguments.
        values = self.__dict__
        if len(args) == count and not named:
            values.update(zip(names, args))  # noqa: B905 - `strict` takes longer than the check above
        else:
            values.update(zip(names, args), **named)  # noqa: B905
            if len(values) != count or len(args) + len(named) != count or not every.issuperset(named):
                values.update(defaults := _defaults(cls, names, described, values))
                if not every.issuperset(named) or len(args) + len(named) + len(defaults) != count:
                    own()(self, *args, **named)  # Raise `TypeError` for wrong arguments.
        if finish:
            self.__post_init__()

    return __init__


def _own_init(fields: Mapping[str, "dataclasses.Field[Any]"], finish: bool, kw_only: bool) -> Callable[..., None]:
    scope: dict[str, Any] = {"_MISSING": dataclasses.MISSING}
    taken, lines = ["self", *["*"] * kw_only], ["_fields = self.__dict__"]
    for name, field in fields.items():
        value = name
        if field.default_factory is not dataclasses.MISSING:
            scope[f"_{name}"] = field.default_factory
            value = f"_{name}() if {name} is _MISSING else {name}"
            taken.append(f"{name}=_MISSING")
        elif field.default is not dataclasses.MISSING:
            scope[f"_{name}"] = field.default
            taken.append(f"{name}=_{name}")
        else:
            taken.append(name)
        lines.append(f"_fields[{name!r}] = {value}")
    lines += ["self.__post_init__()"] * finish
    # Names of fields are identifiers, so they cannot contain other code.
    exec(f"def __init__({', '.join(taken)}):\n    " + "\n    ".join(lines), scope)
    made: Callable[..., None] = scope["__init__"]
    return made


def _defaults(
    cls: type, names: tuple[str, ...], described: Mapping[str, "dataclasses.Field[Any]"], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in names:
        field = described.get(name)
        if name in arguments:
            continue
        if field is not None and field.default_factory is not _MISSING:
            values[name] = field.default_factory()
        elif (default := vars(cls).get(name, _MISSING) if field is None else field.default) is not _MISSING:
            values[name] = default
    return values


def _refuse(self: Any, name: str, *value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot change field {name!r} of {type(self).__qualname__}")


def _repr(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _equal(names: list[str]) -> Callable[[Any, Any], Any]:
    values = attrgetter(*names)

    def __eq__(self: Any, other: Any) -> Any:  # noqa: N807
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(names: list[str]) -> Callable[[Any], int]:
    values = attrgetter(*names)
    return lambda self: hash(values(self))
