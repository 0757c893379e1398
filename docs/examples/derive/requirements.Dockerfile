ARG IMAGE=torch-cu130:sm120
FROM $IMAGE
COPY requirements.txt /tmp/requirements.txt
RUN pip install --no-cache-dir -r /tmp/requirements.txt
