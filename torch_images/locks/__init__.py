"""Lock files: their grammar, and reading them.

Enters: the text of locks/. Leaves: frozen locks that hold all that was requested. Fetches
nothing.
"""
