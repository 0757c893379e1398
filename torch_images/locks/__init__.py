"""Lock files: their types, and reading them.

Enters: the text of locks/. Leaves: frozen locks that go with images.yaml. Fetches nothing.
"""
