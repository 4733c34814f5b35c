# Five images, built from this source tree: `docker build --target store .` (the store and the
# commands), `--target ratelimit` (the same program as Envoy's rate limit service), `--target envoy`
# (Envoy with both forms of the filter), and the Wasm filter alone, for Istio's WasmPlugin and Envoy
# Gateway's EnvoyExtensionPolicy: `--target filter`, or `--target filter-bodies` for policies that
# read bodies. It needs BuildKit, which Docker 23 and later use by default.
#
# Without a compiler: `cargo xtask package` writes all images but Envoy's for a release, and
# docker/envoy.Dockerfile adds the archive of a release to that one.

FROM rust:1.95.0-bookworm AS build
# The Rust of this image, whatever rust-toolchain.toml names.
ENV RUSTUP_TOOLCHAIN=1.95.0
# musl-gcc compiles the C parts of the static command.
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends musl-tools \
 && rustup target add wasm32-wasip1 "$(uname -m)-unknown-linux-musl"
WORKDIR /src
COPY . .
# The folders are those of a release's archive.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo xtask build \
 && cargo build --locked --release --package quotagate-cli --target "$(uname -m)-unknown-linux-musl" \
 && mkdir -p /dist/bin /dist/lib /dist/wasm \
 && cp "target/$(uname -m)-unknown-linux-musl/release/quotagate" /dist/bin/ \
 && mkdir -p /command/bin && cp /dist/bin/quotagate /command/ \
 && ln -s ../quotagate /command/bin/quotagate && ln -s ../quotagate /command/bin/ratelimit \
 && cp dist/libquotagate.so /dist/lib/ \
 && cp dist/quotagate.wasm dist/quotagate-bodies.wasm /dist/wasm/

# One static program, and nothing else that could have faults or be run.
FROM scratch AS command
# For Redis over TLS (rediss://).
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /command /

FROM command AS store
ENV QUOTAGATE_LISTEN=0.0.0.0:9180 QUOTAGATE_ADMIN=0.0.0.0:9181
EXPOSE 9180 9181
USER 65532:65532
HEALTHCHECK --interval=2s --timeout=2s --start-period=10s --retries=15 CMD ["/quotagate", "health"]
ENTRYPOINT ["/quotagate"]
CMD ["serve"]

# The same program under the name of envoyproxy/ratelimit's.
FROM command AS ratelimit
EXPOSE 8081 8080 6070
USER 65532:65532
HEALTHCHECK --interval=2s --timeout=2s --start-period=10s --retries=15 CMD ["/quotagate", "health", "http://127.0.0.1:8080/healthcheck"]
ENTRYPOINT ["/bin/ratelimit"]

# Istio and Envoy Gateway expect one layer with one file of this name.
FROM scratch AS filter
COPY --from=build /dist/wasm/quotagate.wasm /plugin.wasm

FROM scratch AS filter-bodies
COPY --from=build /dist/wasm/quotagate-bodies.wasm /plugin.wasm

FROM envoyproxy/envoy:v1.40.0 AS envoy
COPY --from=build /dist /opt/quotagate
# Configurations name dist/quotagate.wasm or dist/quotagate-bodies.wasm relative to the working
# directory.
RUN ln -s /opt/quotagate/wasm /dist && ln -s /opt/quotagate/bin/quotagate /usr/local/bin/quotagate
WORKDIR /
ENV ENVOY_DYNAMIC_MODULES_SEARCH_PATH=/opt/quotagate/lib
COPY docker/envoy.yaml /etc/envoy/envoy.yaml
EXPOSE 10000
USER envoy
HEALTHCHECK --interval=2s --timeout=2s --start-period=10s --retries=15 CMD ["quotagate", "health", "http://127.0.0.1:9901/ready"]
ENTRYPOINT ["envoy"]
CMD ["--config-path", "/etc/envoy/envoy.yaml"]
