"""httpx without its command line program, which brings click, rich and pygments into every start (90 of 630 ms)."""

import sys
from types import ModuleType
from typing import cast

if "httpx" not in sys.modules:
    sys.modules.setdefault("httpx._main", cast(ModuleType, None))  # as where click is not installed

import httpx

__all__ = ["httpx"]
