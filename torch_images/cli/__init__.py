"""The verbs, and what they print.

Enters: a command line. Leaves: text or JSON, and an exit code.
"""
