"""Objects that stay as the process has them: those of libraries, files, threads, generators.

Tensors and program objects that are reached only through these objects are state, too.
"""

from __future__ import annotations

import functools
import logging
from types import GeneratorType
from typing import Any, Final

from detrain.base.digest import digest_array
from detrain.base.losses import LOADS_TRAINED
from detrain.base.plain_types import CONTAINERS, is_iterator
from detrain.python.codec.arrays import encode_tensor
from detrain.python.codec.containers import encode_held
from detrain.python.codec.decoding import Decoding
from detrain.python.codec.encoding import Encoding
from detrain.python.codec.kind import Form, define
from detrain.python.codec.objects import encode_data, encode_user_object
from detrain.python.codec.tensors import encode_shared
from detrain.python.inspect.fingerprint import Unreadable, at_steps, digest_of_tensor, shown_steps, state_inside
from detrain.python.inspect.function_source import holds_state
from detrain.python.inspect.held import Steps
from detrain.python.inspect.hooks import Hooks
from detrain.python.inspect.names import is_library_class, is_own_class, is_user_class, type_name
from detrain.python.inspect.object_graph import ABSENT, WITH_VARIABLES, Node, shown
from detrain.python.inspect.output_only import is_output_only, only_shows
from detrain.python.inspect.ownership import extends_library
from detrain.python.inspect.progress import is_iterator_of_library, is_open_for_writing, place_of, position, stands_still, takes_in
from detrain.python.process import filled_queues
from detrain.python.process.reducers import reduction_named, reduction_of

UNSEEN: Final = "loading the same batches must move it to where it is, and nothing tells where that is"


def encode_stranger(encoding: Encoding, number: int, value: Any, path: str) -> Node:
    """Encode an object that its class alone does not describe: a framework's tensor or variable, an object of the
    program or of a library."""
    cls = type(value)
    shared = encoding.hooks.shared(value)
    if shared is not None:
        return encode_shared(encoding, value, shared, path)
    variable = encoding.hooks.variable(value)
    if variable is not None:
        if encoding.collects:
            encoding.baseline.add(value)
        return Node("variable", [variable, encoding.hooks.is_of_loop(value)])
    tensor = encoding.hooks.tensor(value)
    if tensor is not None:
        return encode_tensor(encoding, value, tensor, path)
    if is_user_class(cls):
        encoding.by_class[cls] = encode_user_object
        return encode_user_object(encoding, number, value, path)
    is_marked = encoding.hooks.holds_variables(value) and encoding.rules.is_marked(value)
    if not is_marked and (node := encoding.encode_parts(value, path)) is not None:
        return node
    is_kept = encoding.rules.is_of_library(value) and not encoding.rules.is_choice(value)
    if encoding.hooks.is_container(value) and not is_kept and encoding.rules.is_walkable(value):
        return Node("held", type_name(value), [encode_held(encoding, number, value, path)])
    if isinstance(value, logging.Filterer):
        _note_handlers(encoding, value, path)
    if encoding.rules.is_data(value):
        return encode_data(encoding, number, value, path)
    if is_own_class(cls) or encoding.hooks.is_holder(value) or encoding.rules.is_marked(value):
        return encoding.encode_derived(number, value, path)
    return encoding.encode_opaque(number, value, path)


def encode_opaque(encoding: Encoding, number: int, value: object, path: str, *, is_captured: bool = False) -> Node:
    moved = len(encoding.moved)
    node = _encode_kept(encoding, number, value, path, is_captured=is_captured)
    is_given = is_captured or node.kind == "loader"  # its whole state is put back
    if not is_given and (is_library_class(type(value)) or extends_library(type(value))):
        is_training = note_inside(encoding, value, path)
        if is_training and len(encoding.moved) > moved and not is_output_only(value):
            encoding.lost.append(f"{shown(path)} ({type_name(value)}: {LOADS_TRAINED})")
    return node


def _encode_kept(encoding: Encoding, number: int, value: object, path: str, *, is_captured: bool = False) -> Node:
    """Encode an object that is not data: it stays as it is, under its address from when the loop was entered.

    An object that has moved on is named, unless its state is captured elsewhere (`is_captured`).
    """
    if encoding.collects:
        encoding.baseline.add(value, "" if encoding.is_unordered else path)
        encoding.baseline.add_position(value, _position(encoding, value))
        if not encoding.is_loader:
            encoding.hooks.follow(value)
    elif (pulled := encoding.hooks.pulled(value)) is not None and encoding.baseline.address(value):
        encoding.moved.append(f"{shown(path)} (generator)")
        return Node("generator", [type_name(value), pulled], there=encoding.baseline.address(value))
    elif not encoding.baseline.has(value):
        made = _encode_new(encoding, value, path) or _encode_made_by_loads(encoding, value, path)
        if made is not None:
            return made
        why = f": {WITH_VARIABLES}" if encoding.hooks.holds_variables(value) else ""
        if (reason := encoding.hooks.no_position(value)) and not encoding.is_loader:
            why = f": {reason}"
        return encoding.lose(number, path, f"{type_name(value)}{why}")
    elif (loader := _encode_offered(encoding, value, path)) is not None:
        return loader
    elif is_open_for_writing(value):
        if not encoding.hooks.is_known_file(value):
            encoding.lose(number, path, f"{type_name(value)}: open for writing")
    elif not is_captured and (place := _note_moved(encoding, number, value, path)) is not None:
        return Node("opaque", [type_name(value), place], there=encoding.baseline.address(value))
    if encoding.outputs or is_output_only(value):
        encoding.spare.add(number)
    return Node("opaque", [type_name(value)], there=encoding.baseline.address(value))


def _encode_new(encoding: Encoding, value: object, path: str) -> Node | None:
    """Encode an object that the loop has made and a framework can make again, if all its parts can be encoded; or a
    logger, which Python gives by its name."""
    if type(value) is logging.Logger and not value.handlers and not value.filters and logging.getLogger(value.name) is value:
        return Node("logging.Logger", None, [encoding.encode(value.name, path)])
    described = encoding.hooks.parts_of_new(value)
    if described is None:
        return None
    lost = len(encoding.lost)
    items = [encoding.encode(part, f"{path}[{index}]") for index, part in enumerate(described[1])]
    if len(encoding.lost) > lost:
        del encoding.lost[lost:]
        return None
    return Node(described[0], None, items)


def _encode_made_by_loads(encoding: Encoding, value: object, path: str) -> Node | None:
    """Encode an iterator that the loop's own iterator has made since it began: loading the same batches again makes
    another one, whose position is compared.
    """
    is_made = encoding.is_drawn_from and is_iterator(value) and not takes_in(value)
    place = place_of(value, encoding.hooks.is_loader) if is_made else None
    if place is None:
        return None
    encoding.moved.append(f"{shown(path)} ({type_name(value)})")
    return Node("opaque", [type_name(value), place])


def _encode_offered(encoding: Encoding, value: object, path: str) -> Node | None:
    """Encode the position that an object of a library offers, if that is data."""
    offered = encoding.hooks.loader_state(value) if encoding.baseline.address(value) else None
    if offered is None:
        return None
    lost = len(encoding.lost)
    item = encoding.encode(offered[1], f"{path}.state")
    if len(encoding.lost) > lost:
        del encoding.lost[lost:]
        return None
    return Node("loader", [type_name(value), offered[0]], [item], there=encoding.baseline.address(value))


def _note_moved(encoding: Encoding, number: int, value: object, path: str) -> str | None:
    """Name an object that has moved on: as lost, or as moved if loading the same batches again brings it back; return
    its position then.
    """
    if encoding.hooks.is_loader(value):
        reason = encoding.hooks.no_position(value)
        if reason and (encoding.is_loader or (encoding.are_loads_replayed and not encoding.is_alone)):
            encoding.moved.append(f"{shown(path)} ({reason})")
        elif reason:
            encoding.lose(number, path, f"{type_name(value)}: {reason}")
        return None
    if encoding.are_loads_replayed and (filled := filled_queues.place(value, encoding.hooks.tensor)) is not None:
        encoding.moved.append(f"{shown(path)} ({type_name(value)})")
        return filled
    now = _position(encoding, value)
    if now is None and encoding.is_loader:
        encoding.moved.append(f"{shown(path)} ({type_name(value)})")
    elif now is None and encoding.are_loads_replayed and is_iterator_of_library(value):
        encoding.lose(number, path, f"{type_name(value)}: {UNSEEN}")
    elif now is None and not stands_still(value):
        encoding.lose(number, path, f"{type_name(value)}: nothing shows whether it has moved on")
    elif isinstance(now, Unreadable) and not encoding.is_loader:
        encoding.lose(number, path, f"{type_name(value)}: what an extension keeps in it cannot be read")
    elif not encoding.baseline.is_at(value, now) and not (isinstance(value, GeneratorType) and value.gi_running):
        is_by_body = encoding.is_alone and not is_iterator(value)
        is_by_body |= encoding.hooks.is_drawn_by_bodies(value)
        if encoding.are_loads_replayed and not takes_in(value) and not is_by_body:
            encoding.moved.append(f"{shown(path)} ({type_name(value)})")
            place = place_of(value, encoding.hooks.is_loader)
            if place is None:  # no resumed run can see whether loads have brought it there
                encoding.lose(number, path, f"{type_name(value)}: {UNSEEN}")
            return place
        encoding.lose(number, path, f"{type_name(value)}: it has moved on")
    return None


def _position(encoding: Encoding, value: object) -> object:
    return position(value, encoding.drawn[0] if only_shows(value) else None)


def note_inside(encoding: Encoding, value: object, path: str) -> bool:
    """Encode the objects below a library's object that are state by themselves: modules, optimizers, tensors, objects
    of the program.

    One that came there since the loop was entered is lost, unless loading the same batches may bring it there again.
    Returns whether a trained object is among them.
    """
    is_training = False
    address = None if encoding.finds_by_place else encoding.baseline.address(value)
    if encoding.is_loader or (address is None and not encoding.finds_by_place):
        return False
    is_state = functools.partial(_is_state_inside, encoding, encoding.hooks.unread())
    for steps, item in state_inside(value, is_state, encoding.drawn[1] if only_shows(value) else None):
        place = f"{path}{shown_steps(steps)}"
        is_training |= callable(getattr(type(item), "zero_grad", None))
        constant = encoding.hooks.tensor(item)
        held = item if constant is None else digest_array(constant)
        if encoding.collects:
            encoding.baseline.add_inside(value, steps, held)
            if constant is None:
                encoding.encode(item, place)
        elif encoding.finds_by_place or encoding.baseline.has_inside(value, steps, held):
            if constant is None:
                _note_stranger(encoding, value, Node("inside", [steps], [encoding.encode(item, place)], there=address), place)
        elif constant is None and only_shows(value) and (known := encoding.baseline.place_of(item)) is not None:
            # Another part of the figure led to it, or another way.
            _note_stranger(encoding, value, Node("inside", [known[1]], [encoding.encode(item, place)], there=known[0]), place)
        else:
            _note_other(encoding, value, address, steps, item, place)
    return is_training


def _note_stranger(encoding: Encoding, owner: object, node: Node, place: str) -> None:
    encoding.more_roots[f"class|{place}"] = encoding.add_node(owner, node)


def _note_other(encoding: Encoding, owner: object, address: str | None, steps: Steps, item: object, place: str) -> None:
    """Name an object that came into a library's object since the loop was entered; if loads may have put it there, a
    resumed run checks that they do.
    """
    if is_output_only(owner):
        return
    if encoding.are_loads_replayed and not encoding.is_alone:
        encoding.moved.append(f"{shown(place)} ({type_name(item)})")
        digest = digest_of_tensor(item, encoding.hooks)
        if digest is not None:
            _note_stranger(encoding, owner, Node("inside", [steps, digest], [None], there=address), place)
            return
        encoding.name_loss(place, item, f"{type_name(item)}: {UNSEEN}")
        return
    encoding.name_loss(place, item, f"{type_name(item)}: an object of a library holds it since")


def _is_state_inside(encoding: Encoding, unread: Hooks, item: object) -> bool:
    cls = type(item)
    if cls in CONTAINERS.values():
        return False
    is_of_program = is_user_class(cls) or is_own_class(cls) or holds_state(item)
    is_tensor = encoding.hooks.is_shared(item) or unread.tensor(item) is not None
    return is_of_program or is_tensor or encoding.hooks.is_generator(item)


def _note_handlers(encoding: Encoding, value: Any, path: str) -> None:
    """Encode the handlers and filters of a logger or handler, which itself stays: they may be the program's."""
    encoding.outputs += 1
    for kind in ("handlers", "filters"):
        for index, held in enumerate(getattr(value, kind, ())):
            place = f"{path}.{kind}[{index}]"
            if isinstance(held, logging.Filterer | logging.Filter):
                encoding.more_roots[f"class|{place}"] = encoding.encode(held, place)
    encoding.outputs -= 1


def encode_reduced(encoding: Encoding, number: int, value: Any, path: str) -> Node:
    """Encode an object by a package's reducer: a resumed run keeps it or makes it anew, and gives it its data."""
    reduction = reduction_of(type(value))
    assert reduction is not None
    if encoding.collects:
        encoding.baseline.add(value, "" if encoding.is_unordered else path)
        return Node("reduced")
    address = encoding.address_of(value)
    is_new = not encoding.baseline.has(value)
    if address is None and not encoding.finds_by_place and not (is_new and reduction.makes):
        return encoding.lose(number, path, f"{type_name(value)}: the loop has made it, and its reducer makes none")
    return Node("reduced", type_name(value), [encoding.encode(reduction.save(value), f"{path}.data")], there=address)


def decode_inside(decoding: Decoding, _number: int, node: Node, current: object, path: str) -> object:
    """Put back an object below a library's object, in place; or check that loads have brought it there."""
    (steps, *digest), (item,) = node.data, node.items
    owner = current if decoding.finds_by_place else decoding.baseline.at(node.there)
    try:
        live = at_steps(owner, steps)
    except LookupError:
        live = ABSENT
    if digest:
        if digest_of_tensor(live, decoding.hooks) != digest[0]:
            decoding.miss(path, "loading the same batches has not brought it to where it was: bodies had moved it")
    elif live is ABSENT or decoding.decode(item, live, path) is not live:
        decoding.miss(path, "an object of a library holds another one than it did")
    return owner


def decode_loader(decoding: Decoding, _number: int, node: Node, current: object, path: str) -> object:
    """Set an object of a library to the position that it offered."""
    found = decoding.keep(node.data[0], node.there, current)
    state = decoding.decode(node.items[0], ABSENT, f"{path}.state")
    if found is not ABSENT and (state is ABSENT or not _bring(decoding, found, node.data[1], state)):
        decoding.miss(path, "it takes no position")
    return found


def _bring(decoding: Decoding, found: object, which: int, state: object) -> bool:
    """Bring an object to the position that it offered; return whether it is there. One that loads have brought there is
    left alone: to set it amid an iteration may separate it from the objects that count for it."""
    offered = decoding.hooks.loader_state(found)
    return (offered is not None and decoding.are_alike(offered[1], state)) or decoding.hooks.set_loader(found, which, state)


def decode_reduced(decoding: Decoding, _number: int, node: Node, current: object, path: str) -> object:
    """Give an object, or a new one, the data that a package's reducer has saved."""
    name = node.data
    data = decoding.required(node.items[0], ABSENT, f"{path}.data")
    found = current if decoding.finds_by_place else decoding.baseline.at(node.there)
    if type_name(found) != name:
        found = ABSENT
    reduction = reduction_named(name)
    if reduction is None:
        decoding.miss(path, f"no package that is installed here has a reducer for {name}")
    elif found is not ABSENT:
        reduction.load(found, data)
    elif reduction.makes:
        return reduction.make(data)
    return found


def _decode_kept(decoding: Decoding, _number: int, node: Node, current: Any, _path: str) -> object:
    return decoding.keep(node.data[0], node.there, current, *(node.data[1:] if node.kind == "opaque" else ()))


define("opaque", decode=_decode_kept, form=Form([str]), holds="nothing")
define("generator", decode=_decode_kept, form=Form([str, list], 0, 0))
define("loader", decode=decode_loader, form=Form([str, int], 1, 1))
define("inside", decode=decode_inside, form=Form([list], 1, 1))
define("reduced", decode=decode_reduced, form=Form(str, 1, 1))
