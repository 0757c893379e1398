ARG IMAGE=torch-cu130:devel
FROM $IMAGE
RUN pip install --no-cache-dir --no-build-isolation causal-conv1d==1.7.0
