"""From pydantic's complaints to faults: dotted path, value, what was expected; every one at once."""

from __future__ import annotations

import re
import types
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args, get_origin

from dsa_ledger.errors import ABSENT, BadInput, Fault, Said, Words, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

Inputs = TypeVar("Inputs", bound="BaseModel")

# Fields that take a name or a table; pydantic puts the branch it took into the path.
_NAME_OR_TABLE = ("model", "gpu")

_EXPECTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a table",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "missing": "a value",
    "model_attributes_type": "a table",
    "model_type": "a table",
    "string_pattern_mismatch": "text that matches {pattern}",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "at least {min_length} characters",
    "string_type": "text",
    "tuple_type": "a list",
}


def validated(kind: type[Inputs], data: Mapping[str, Any], prefix: str = "") -> Inputs:
    """Return `data` as an instance of `kind`; BadInput names every fault, its path below `prefix`."""
    from pydantic import ValidationError

    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise BadInput(faults_of(error, kind, prefix)) from None


def faults_of(error: ValidationError, kind: type[BaseModel], prefix: str = "") -> Iterator[Fault]:
    """Yield one fault for each complaint about an instance of `kind`."""
    for detail in error.errors(include_url=False):
        path = _without_branch(detail["loc"])
        value = ABSENT if detail["type"] == "missing" else _as_written(detail["input"])
        yield Fault(prefix + dotted(path), value, _expected(detail, kind, path))


def dotted(path: Sequence[str | int]) -> str:
    """Return `("stages", 1, "tp")` as `stages[1].tp`."""
    shown = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return shown.removeprefix(".")


def field_paths(kind: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted path of every field below `kind`, tables before what they hold."""
    for name, field in kind.model_fields.items():
        path = prefix + (field.alias or name)
        yield path
        table = _table(field.annotation)
        if table is not None and path not in _NAME_OR_TABLE:
            yield from field_paths(table, path + ".")


def _without_branch(path: tuple[str | int, ...]) -> tuple[str | int, ...]:
    if len(path) > 1 and path[0] in _NAME_OR_TABLE and path[1] in ("name", "table"):
        return (path[0], *path[2:])
    return path


def _as_written(value: Any) -> Any:
    """Return a number for text that is one (options come as text), and words for what is too long or not hashable."""
    if value is None:
        return Words("null")
    if isinstance(value, dict):
        return Words(f"a table of {len(value)}")
    if isinstance(value, list | tuple):
        return Words(f"a list of {len(value)}")
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,30}(\.\d{1,30})?", value):
        return float(value) if "." in value else int(value)
    return value


def _expected(detail: ErrorDetails, kind: type[BaseModel], path: tuple[str | int, ...]) -> str:
    context = detail.get("ctx", {})
    what = detail["type"]
    if what == "extra_forbidden":
        return _unknown_field(kind, path)
    if what == "literal_error":
        known = re.findall(r"'([^']*)'", context["expected"])
        return nearest(str(detail["input"]), known) if known else context["expected"]
    if what == "value_error":  # our own validators say what would have been right
        return str(context["error"])
    if what in _EXPECTED:
        return _EXPECTED[what].format(**context)
    start, _, wanted = detail["msg"].partition("Input should be ")
    return Said(detail["msg"]) if start or not wanted else wanted


def _unknown_field(kind: type[BaseModel], path: tuple[str | int, ...]) -> str:
    last = str(path[-1])
    elsewhere = [known for known in field_paths(kind) if known.endswith("." + last)]
    if elsewhere:
        return Said(f"unknown field; did you mean {elsewhere[0]!r}?")
    owner: type[BaseModel] | None = kind
    for part in path[:-1]:
        fields = owner.model_fields if owner else {}
        annotation = next((field.annotation for name, field in fields.items() if part in (name, field.alias)), None)
        owner = _table(annotation)
    names = [field.alias or name for name, field in (owner or kind).model_fields.items()]
    return Said(f"unknown field; expected {nearest(last, names)}")


def _table(annotation: Any) -> type[BaseModel] | None:
    """Return the model class within an annotation such as `Sharding`, `Model | None` or `tuple[Model, ...]`."""
    from pydantic import BaseModel

    if isinstance(annotation, type) and not get_args(annotation):
        return annotation if issubclass(annotation, BaseModel) else None
    origin = get_origin(annotation)
    inner = get_args(annotation)[:1] if origin is Annotated else get_args(annotation)
    if origin in (Annotated, Union, types.UnionType, tuple, list):
        return next((table for part in inner if (table := _table(part))), None)
    return None
