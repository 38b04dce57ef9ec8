"""Loads the request and response models of one SGLang release from its wheel.

The wheels pull in CUDA libraries when they are installed, so they are only
unpacked, and whatever the model modules import beyond themselves is replaced by
a placeholder that accepts anything.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from pathlib import Path

from pydantic_core import core_schema

# The modules that are run as they are in the wheel.
REAL = {
    "sglang.srt." + name
    for name in (
        "managers.io_struct",
        "entrypoints.openai.protocol",
        "sampling.sampling_params",
        "utils.field_validators",
        "utils.msgspec_utils",
        "utils.weight_versions",
    )
}
# The packages whose other modules are placeholders.
REPLACED = {"sglang", "torch", "zmq", "PIL", "transformers", "triton", "xgrammar"}


class _PlaceholderType(type):
    """A class that can stand wherever a type, a decorator or a union does."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(name)

    def __call__(cls, *args, **kwargs):
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]
        return super().__call__()

    def __or__(cls, other):
        return cls

    __ror__ = __or__

    def __getitem__(cls, key):
        return cls


def _placeholder(name):
    accept_anything = classmethod(lambda cls, source, handler: core_schema.any_schema())
    return _PlaceholderType(name, (), {"__get_pydantic_core_schema__": accept_anything})


class _PlaceholderModule(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = _placeholder(name)
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, root):
        self.root = root

    def find_spec(self, name, path, target=None):
        file = self.root / (name.replace(".", "/") + ".py")
        if name in REAL and file.exists():
            return importlib.util.spec_from_file_location(name, file)
        if name.split(".")[0] in REPLACED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _PlaceholderModule(spec.name)

    def exec_module(self, module):
        pass


class Release:
    """The models of one release, and the text of its sources."""

    def __init__(self, root):
        self.root = Path(root)
        finder = _Finder(self.root)
        sys.meta_path.insert(0, finder)
        try:
            import msgspec

            # Built at import time for types that are placeholders here.
            msgspec.msgpack.Decoder = msgspec.msgpack.Encoder = lambda *args, **kwargs: None
            self.io = importlib.import_module("sglang.srt.managers.io_struct")
            self.openai = importlib.import_module("sglang.srt.entrypoints.openai.protocol")
            self.sampling = importlib.import_module("sglang.srt.sampling.sampling_params")
        finally:
            sys.meta_path.remove(finder)

    def mentions(self, key):
        """Whether the sources have the key as a string or as a field."""
        if not hasattr(self, "_text"):
            serving = ("managers", "entrypoints", "observability", "utils", "arg_groups", "configs", "runtime_context")
            files = [f for part in serving for f in (self.root / "sglang/srt" / part).rglob("*.py")]
            files.append(self.root / "sglang/srt/server_args.py")
            self._text = "\n".join(f.read_text() for f in files)
        return f'"{key}"' in self._text or f"\n    {key}:" in self._text
