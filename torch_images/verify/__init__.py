"""Built image -> proof.

Enters: an image of the engine. Leaves: a report of checks, an SBOM, and the verdict
of a second build.
"""
