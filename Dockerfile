# The gateway as an image: docker build -t switchyard .
#
# NVML is loaded when the program runs, from where NVIDIA's container runtime
# puts it. It needs glibc, and so does the program built with cgo; nothing of
# NVIDIA's is in the image. Without a GPU the same image says gpu: none.

FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG COMMIT=unknown
RUN CGO_ENABLED=1 CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations" \
    go build -trimpath -ldflags "-s -w -X main.commit=$COMMIT" -o /out/switchyard ./cmd/switchyard

FROM debian:bookworm-slim
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/switchyard /usr/local/bin/
# What NVIDIA's container runtime is to make visible: NVML, and no CUDA.
ENV NVIDIA_DRIVER_CAPABILITIES=utility \
    SWITCHYARD_CONFIG=/etc/switchyard.yaml
USER 65532:65532
EXPOSE 8700 8701
# Asks the admin side; with a token, SWITCHYARD_ADMIN_TOKEN says it.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["switchyard", "status"]
ENTRYPOINT ["switchyard"]
CMD ["serve"]
