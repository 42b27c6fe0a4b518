"""What a process made while it started is no longer searched for garbage.

Python's collector looks through every object it knows: with torch and transformers loaded 0.2 s, in
which all requests stand still. What requests leave behind is looked through in no time.
"""

import gc


def settle() -> None:
    """Collects now, and leaves what is left out of later searches; again after what was to stay for
    good has been replaced, whose cycles no search would find."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
