"""How a benchmark's child process imports a module of somebody else's checkout."""

LOAD = """
import importlib, sys, types
def load(name):
    while True:  # packages that are missing serve other things than what is measured
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            assert error.name.partition(".")[0] not in ("pandas", "numpy"), error
            stand_in = sys.modules[error.name] = types.ModuleType(error.name)
            stand_in.__path__ = []
            stand_in.__getattr__ = lambda _: type("Unused", (), {})
"""
