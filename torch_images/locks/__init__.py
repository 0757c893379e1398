"""Lock files: their grammar, and reading them.

Enters: the text of locks/. Leaves: frozen locks that contain everything requested. Fetches
nothing.
"""
