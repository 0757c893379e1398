"""torch-images: reproducible CUDA PyTorch container images from one matrix file.

Importing this package imports nothing else: `torch_images.arch` and `torch_images.inside`
also run inside images, where none of the pipeline's dependencies are installed.
"""
