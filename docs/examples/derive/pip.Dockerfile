ARG IMAGE=torch-cu130:sm120
FROM $IMAGE
RUN pip install --no-cache-dir einops
