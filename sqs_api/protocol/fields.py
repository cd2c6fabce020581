"""Struct annotations to readers of form parameters and writers of XML and of the JSON form,
compiled at import. Pure.

The only file that reads annotations, and the only one that may use Any: a reader builds the type
that the annotation names. Nothing here knows an action; names that do not follow from the field are
in `wire`.
Costs: reading is linear in the given bytes, plus sorting the numbers of list elements.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

import msgspec

from sqs_api.protocol.wire_names import ALSO_READ, JSON_FORM_MEMBERS, LIST_ELEMENTS, MAP_ELEMENTS
from visibility.contract.errors import InvalidParameterValue, InvalidRequest, MissingParameter

INDEX_MAX = 214_748_369
"""The largest element number AWS reads; found by bisection on another service of the same
framework."""

_INTEGER = re.compile(r"-?[0-9]{1,18}")
_INDEX_DIGITS_MAX = 9
# Characters that XML 1.0 cannot carry, not even escaped: an error text may echo them.
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")

Params = Mapping[str, str]
Slots = dict[int, dict[str, str]]
"""Element number -> rest of the name -> value; 0 is the unnumbered form of a single element."""

XmlWriter = Callable[[Any, list[str]], None]


class Shape(NamedTuple):
    """A field as its annotation describes it."""

    field: str
    member: str
    container: type | None
    """list, dict or None."""
    item: Any
    """The type of the value, of the list's elements or of the map's values."""


def shapes(struct: type[msgspec.Struct]) -> tuple[Shape, ...]:
    """The fields of a Struct in order."""
    return tuple(_shape(info) for info in msgspec.structs.fields(struct))


def _shape(info: msgspec.structs.FieldInfo) -> Shape:
    annotation: Any = info.type
    if get_origin(annotation) in (Union, UnionType):
        (annotation,) = (part for part in get_args(annotation) if part is not type(None))
    container = get_origin(annotation)
    item = annotation if container is None else get_args(annotation)[-1]
    return Shape(info.name, info.encode_name, container, item)


def _is_struct(item: Any) -> bool:
    return isinstance(item, type) and issubclass(item, msgspec.Struct)


def _list_element(shape: Shape) -> str:
    name: str = shape.item.__name__ if _is_struct(shape.item) else LIST_ELEMENTS[shape.field]
    return name


# -- form parameters to Structs -----------------------------------------------------------------


def _read_text(value: str) -> str:
    return value


def _read_integer(value: str) -> int:
    if not _INTEGER.fullmatch(value):
        raise InvalidRequest("STRING_VALUE can not be converted to an Integer")
    return int(value)


def _read_blob(value: str) -> bytes:
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except ValueError as failure:
        raise InvalidRequest("Invalid base64 encoded string") from failure


_SCALAR_READERS: dict[Any, Callable[[str], Any]] = {
    str: _read_text,
    int: _read_integer,
    bytes: _read_blob,
}


class _Group(NamedTuple):
    """Reader of the elements of a flattened list or map."""

    field: str
    bare: frozenset[str]
    """First words of the unnumbered form: `Attribute.Name`, or nothing at all: `AttributeName`."""
    collect: Callable[[Slots], Any]


class StructReader:
    """Reads one Struct from form parameters; unknown parameters are ignored."""

    def __init__(self, struct: type[msgspec.Struct]) -> None:
        self._struct = struct
        self._scalars: dict[str, tuple[str, Callable[[str], Any]]] = {}
        self._groups: dict[str, _Group] = {}
        for shape in shapes(struct):
            if shape.container is None:
                self._scalars[shape.member] = (shape.field, _SCALAR_READERS[shape.item])
            elif shape.container is list:
                self._groups[_list_element(shape)] = _list_group(shape)
            else:
                element = MAP_ELEMENTS[shape.field].element
                for name in (element, ALSO_READ.get(shape.field, element)):
                    self._groups[name] = _map_group(shape, name)

    @property
    def words(self) -> frozenset[str]:
        """The first words of all parameters this Struct has."""
        return frozenset(self._scalars) | frozenset(self._groups)

    def read(self, params: Params) -> Any:
        """Build the Struct.

        InvalidRequest or MissingParameter: a value or an element that cannot be read.
        InvalidParameterValue: a map has a key twice. AWS's answer is not known; its wording is that
        of a label of AddPermission that comes twice.
        """
        values: dict[str, Any] = {}
        found: dict[str, Slots] = {}
        for name, value in params.items():
            scalar = self._scalars.get(name)
            if scalar is not None:
                values[scalar[0]] = scalar[1](value)
                continue
            word, _, rest = name.partition(".")
            group = self._groups.get(word)
            if group is None:
                continue
            place = _place(rest, group.bare)
            if place is None:
                continue
            index, inside = place
            if index or value:
                found.setdefault(word, {}).setdefault(index, {})[inside] = value
        for word, slots in found.items():
            group = self._groups[word]
            collected = group.collect(slots)
            if isinstance(collected, dict):  # a map may have come under both of its names
                collected = values.get(group.field, {}) | collected
            values[group.field] = collected
        return self._struct(**values)


def _place(rest: str, bare: frozenset[str]) -> tuple[int, str] | None:
    """Element number and the name inside the element; None when it is neither numbered nor
    known."""
    word, _, inside = rest.partition(".")
    if word == "member":
        word, _, inside = inside.partition(".")
    if word in bare:
        return 0, rest
    if not word.isdecimal() or not word.isascii():
        return None
    index = int(word) if len(word) <= _INDEX_DIGITS_MAX else INDEX_MAX + 1
    if index > INDEX_MAX:
        raise InvalidRequest(f"Index {word[:20]} is illegal")
    if index == 0:
        raise InvalidRequest("0 is not a valid index")
    return index, inside


def _list_group(shape: Shape) -> _Group:
    if _is_struct(shape.item):
        reader = StructReader(shape.item)

        def collect_structs(slots: Slots) -> list[Any]:
            return [reader.read(slots[index]) for index in sorted(slots)]

        return _Group(shape.field, reader.words, collect_structs)

    read_scalar = _SCALAR_READERS[shape.item]

    def collect_scalars(slots: Slots) -> list[Any]:
        return [read_scalar(slots[index][""]) for index in sorted(slots) if "" in slots[index]]

    return _Group(shape.field, frozenset(("",)), collect_scalars)


def _map_group(shape: Shape, element: str) -> _Group:
    names = MAP_ELEMENTS[shape.field]
    read_value = _struct_value(shape.item, names.value) if _is_struct(shape.item) else None

    def collect(slots: Slots) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for index in sorted(slots):
            inside = slots[index]
            path = f"{element}.{index}" if index else element
            key = _required(inside, names.key, path)
            if key in values:
                raise InvalidParameterValue(
                    f"Value {key} for parameter {path}.{names.key} is invalid. "
                    "Reason: Already exists."
                )
            if read_value is None:
                values[key] = _required(inside, names.value, path)
            else:
                values[key] = read_value(inside)
        return values

    return _Group(shape.field, frozenset((names.key, names.value)), collect)


def _struct_value(struct: type[msgspec.Struct], word: str) -> Callable[[Params], Any]:
    reader = StructReader(struct)
    prefix = word + "."

    def read_value(inside: Params) -> Any:
        return reader.read(
            {
                name.removeprefix(prefix): value
                for name, value in inside.items()
                if name.startswith(prefix)
            }
        )

    return read_value


def _required(inside: Params, name: str, path: str) -> str:
    value = inside.get(name)
    if value is None:
        raise MissingParameter(f"The request must contain the parameter {path}.{name}.")
    return value


# -- Structs to XML -----------------------------------------------------------------------------


def escape_xml(text: str) -> str:
    """Text as XML content.

    A carriage return survives as `&#xD;`; characters that XML cannot carry become U+FFFD.
    """
    if not text.isprintable():
        text = _NOT_XML.sub("\ufffd", text).replace("\r", "\r&#xD;")
    text = (
        text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    )
    return text.replace("\r&amp;#xD;", "&#xD;")


def _write_boolean(value: bool) -> str:
    return "true" if value else "false"


def _write_blob(value: bytes) -> str:
    return binascii.b2a_base64(value, newline=False).decode("ascii")


_SCALAR_WRITERS: dict[Any, Callable[[Any], str]] = {
    str: escape_xml,
    int: str,
    bool: _write_boolean,
    bytes: _write_blob,
}


def xml_writer(struct: type[msgspec.Struct]) -> XmlWriter:
    """A function that appends the members of a Struct as elements; absent members write nothing."""
    plan = [(shape.field, _field_writer(shape)) for shape in shapes(struct)]

    def write(value: Any, out: list[str]) -> None:
        for field, write_field in plan:
            member = getattr(value, field)
            if member is not None:
                write_field(member, out)

    return write


def _field_writer(shape: Shape) -> XmlWriter:
    if shape.container is None:
        return _element_writer(shape.member, shape.item)
    if shape.container is dict:
        return _map_writer(shape)
    write_element = _element_writer(_list_element(shape), shape.item)

    def write_list(values: Iterable[Any], out: list[str]) -> None:
        for value in values:
            write_element(value, out)

    return write_list


def _element_writer(name: str, item: Any) -> XmlWriter:
    start, end = f"<{name}>", f"</{name}>"
    if _is_struct(item):
        write_members = xml_writer(item)

        def write_struct(value: Any, out: list[str]) -> None:
            out.append(start)
            write_members(value, out)
            out.append(end)

        return write_struct

    to_text = _SCALAR_WRITERS[item]

    def write_scalar(value: Any, out: list[str]) -> None:
        out.append(f"{start}{to_text(value)}{end}")

    return write_scalar


def _map_writer(shape: Shape) -> XmlWriter:
    names = MAP_ELEMENTS[shape.field]
    write_key = _element_writer(names.key, str)
    write_value = _element_writer(names.value, shape.item)

    def write_map(values: Mapping[str, Any], out: list[str]) -> None:
        for key, value in values.items():
            out.append(f"<{names.element}>")
            write_key(key, out)
            write_value(value, out)
            out.append(f"</{names.element}>")

    return write_map


# -- Structs to the JSON form of a query answer -------------------------------------------------


def json_form(value: Any) -> Any:
    """A Struct as AWS's JSON form has it: members by name, absent ones null, maps as lists of
    pairs."""
    if isinstance(value, msgspec.Struct):
        members = {
            JSON_FORM_MEMBERS.get(shape.field, shape.member): _json_member(shape, value)
            for shape in _shapes_of(type(value))
        }
        return dict(sorted(members.items()))
    return value


def _json_member(shape: Shape, struct: msgspec.Struct) -> Any:
    value = getattr(struct, shape.field)
    if value is None or shape.container is None:
        return json_form(value)
    if shape.container is list:
        return [json_form(element) for element in value]
    names = MAP_ELEMENTS[shape.field]
    return [{names.key: key, names.value: json_form(item)} for key, item in value.items()]


_SHAPES: dict[type[msgspec.Struct], tuple[Shape, ...]] = {}


def _shapes_of(struct: type[msgspec.Struct]) -> tuple[Shape, ...]:
    """The shapes of a result type, looked at once."""
    known = _SHAPES.get(struct)
    if known is None:
        known = _SHAPES[struct] = shapes(struct)
    return known
