"""Importing this module gives the torch layer that fits the running torch (_layers.py).

The types of all layers are in _C.pyi.
"""

import sys

from . import _layers

sys.modules[__name__] = _layers.load()
