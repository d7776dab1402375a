"""Proto2 encoding and decoding driven by the table in `fields.py`: dictionaries in, bytes out, and back."""

import struct

from . import fields as table

#: What an absent or broker-made id looks like on the wire: minus one as an unsigned 64-bit number.
NO_ID = 2**64 - 1


class Field:
    """One field of a message: its number, name, kind and how often it may occur."""

    def __init__(self, text):
        number, self.name, kind = text.split()
        self.number = int(number)
        self.required = kind.endswith("!")
        self.repeated = kind.endswith("*")
        self.kind, _, self.of = kind.rstrip("!*").partition(":")


def _parse(text, item):
    result = {}
    for line in text.strip().splitlines():
        name, _, rest = line.partition(":")
        result[name] = [item(part.strip()) for part in rest.split("|") if part.strip()]
    return result


MESSAGES = _parse(table.MESSAGES, Field)
_ENUM_ITEMS = _parse(table.ENUMS, str.split)
ENUM_NUMBER = {name: {value: int(number) for number, value in items} for name, items in _ENUM_ITEMS.items()}
ENUM_NAME = {name: {int(number): value for number, value in items} for name, items in _ENUM_ITEMS.items()}
COMMANDS = {}
COMMAND_BY_NUMBER = {}
for _line in table.COMMANDS.strip().splitlines():
    _number, _type, _message = _line.split()
    COMMANDS[_type] = (int(_number), _message)
    COMMAND_BY_NUMBER[int(_number)] = (_type, _message)


def varint(value):
    """A base-128 varint. Negative numbers are written as ten bytes, as proto2 does for int32 and int64."""
    value &= NO_ID
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data, at):
    """The varint at `at` and the offset behind it. Raises ValueError when it is cut or too long."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError(f"bad varint at byte {at}")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & NO_ID, at
        shift += 7


def _encode_value(field, value):
    if field.kind in ("u", "i", "b"):
        return varint(int(value))
    if field.kind == "e":
        return varint(value if isinstance(value, int) else ENUM_NUMBER[field.of][value])
    if field.kind == "d":
        return struct.pack("<d", value)
    if field.kind == "m":
        value = encode(field.of, value)
    elif field.kind == "s":
        value = value.encode() if isinstance(value, str) else value
    return varint(len(value)) + value


_WIRE_TYPE = {"u": 0, "i": 0, "b": 0, "e": 0, "d": 1, "s": 2, "y": 2, "m": 2}


def encode(message, values):
    """The bytes of `message` with the given field values. Unknown field names are an error of the test, so they raise."""
    known = {field.name: field for field in MESSAGES[message]}
    unknown = set(values) - set(known)
    if unknown:
        raise KeyError(f"{message} has no field {sorted(unknown)}; it has {sorted(known)}")
    out = bytearray()
    for field in MESSAGES[message]:
        if values.get(field.name) is None:
            continue
        for value in values[field.name] if field.repeated else [values[field.name]]:
            out += varint(field.number << 3 | _WIRE_TYPE[field.kind])
            out += _encode_value(field, value)
    return bytes(out)


def decode(message, data):
    """The set fields of `message`. Enums become names, signed kinds become signed. Raises ValueError for damaged bytes
    and for a missing required field: a broker must not send either."""
    known = {field.number: field for field in MESSAGES[message]}
    values, at = {}, 0
    while at < len(data):
        key, at = read_varint(data, at)
        wire_type = key & 7
        if wire_type == 0:
            value, at = read_varint(data, at)
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
            value, at = data[at : at + size], at + size
        elif wire_type == 2:
            size, at = read_varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"{message}: wire type {wire_type}")
        if at > len(data):
            raise ValueError(f"{message}: a field runs past the end")
        field = known.get(key >> 3)
        if field is None:
            continue
        if field.kind == "i" and value >> 63:
            value -= 1 << 64
        elif field.kind == "b":
            value = bool(value)
        elif field.kind == "e":
            value = ENUM_NAME[field.of].get(value, value)
        elif field.kind == "d":
            value = struct.unpack("<d", value)[0]
        elif field.kind == "s":
            value = bytes(value).decode()
        elif field.kind == "y":
            value = bytes(value)
        elif field.kind == "m":
            value = decode(field.of, value)
        if field.repeated:
            values.setdefault(field.name, []).append(value)
        else:
            values[field.name] = value
    missing = [field.name for field in MESSAGES[message] if field.required and field.name not in values]
    if missing:
        raise ValueError(f"{message} without its required fields {missing}")
    return values
