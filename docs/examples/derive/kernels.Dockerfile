ARG IMAGE=torch-cu130:devel
FROM $IMAGE
# Compile it; its setup.py looks for a wheel on GitHub first, whose hash nobody checks.
ENV CAUSAL_CONV1D_FORCE_BUILD=TRUE TORCH_CUDA_ARCH_LIST=9.0
RUN pip install --no-cache-dir --no-build-isolation causal-conv1d==1.7.0
