"""Facts and rules that images share with the pipeline; images have these files themselves.

Enters: the standard library alone. Leaves: modules that builds and containers import, too.
"""
