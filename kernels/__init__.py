"""Domino's head operations. Nothing in the package may depend on this file: remote loading does not carry it.

With the repository root on `sys.path` this folder hides Hugging Face's `kernels` package, which transformers imports
when it is installed. In that case the import is handed over to the real one.
"""

if __name__ == "kernels":
    import os
    import sys
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    _root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    _spec = PathFinder.find_spec("kernels", [p for p in sys.path if os.path.abspath(p or ".") != _root])
    if _spec is not None and _spec.loader is not None:
        sys.modules["kernels"] = module_from_spec(_spec)
        _spec.loader.exec_module(sys.modules["kernels"])
