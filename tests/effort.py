"""How often a test repeats itself: enough in every run, far more with HYPOTHESIS_PROFILE=explore."""

import os


def effort(usual: int, explore: int) -> int:
    """`usual`, or `explore` where time does not count."""
    return explore if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else usual
