"""A draft that reads only the end of its context: for contexts longer than it was trained on, or
than its attention is worth. Positions stay absolute, the block itself is seen as before."""

from dataclasses import replace

from serving.draft_config import DraftConfig, LayerAttention


def windowed(config: DraftConfig, window: int) -> DraftConfig:
    """The config with layers that see `window` committed positions at most; 0 changes nothing.

    A layer whose own moving window is no longer keeps it.
    """
    if window == 0:
        return config

    def cut(rule: LayerAttention) -> LayerAttention:
        if rule.window is not None and rule.window <= window:
            return rule
        return replace(rule, window=window, window_moves=False)

    return replace(config, attention=tuple(cut(rule) for rule in config.attention))
