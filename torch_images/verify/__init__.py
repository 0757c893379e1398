"""Built image -> proof.

Enters: an image of the engine. Leaves: a report of checks, a bill of materials, and the verdict
of a second build.
"""
