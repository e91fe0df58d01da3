# kernrec with what measuring and signing need. The host brings the NVIDIA driver and the NVIDIA Container Toolkit.
#
#     docker build --tag kernrec .
#     docker run --rm --gpus all --user "$(id -u):$(id -g)" --volume "$HOME/kernrec:/data" kernrec
#
# Bundles, the database and the key stay in the folder that is mounted at /data, which has to exist. For a driver of CUDA
# 12, build with --build-arg CUDA=cuda12.
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE NOTICE ./
COPY kernrec kernrec
COPY db db
COPY datasets datasets
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
ARG CUDA=cuda13
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "kernrec[${CUDA},measure,share] @ file://$(echo /wheels/kernrec-*.whl)" && rm -r /wheels
# Of the toolkit, which puts the driver's libraries into the container.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility HOME=/data
WORKDIR /data
USER 65534
ENTRYPOINT ["kernrec"]
CMD ["contribute", "--budget", "10m"]
