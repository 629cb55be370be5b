# detrain with one framework: docker build -t detrain --build-arg EXTRA=torch .
# Mount a project at /work: docker run --rm -v "$PWD:/work" detrain run train.py
FROM python:3.12-slim
ARG EXTRA=torch
COPY pyproject.toml README.md LICENSE /src/
COPY detrain /src/detrain
RUN pip install --no-cache-dir "/src[$EXTRA]" && rm -rf /src
WORKDIR /work
# SIGTERM of `docker stop` reaches detrain itself, which takes a last checkpoint.
ENTRYPOINT ["detrain"]
CMD ["doctor", "--quick"]
