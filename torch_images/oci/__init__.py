"""OCI image layouts: read, written, and compared.

Enters: blobs and manifests. Leaves: layouts with equal digests for equal content, and the
differences of two images.
"""
