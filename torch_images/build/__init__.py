"""Image and lock -> Dockerfile and bake file -> built image.

Enters: an `ImageSpec` and its lock. Leaves: an image under a candidate tag.
"""
