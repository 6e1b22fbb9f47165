# An image with one static binary and the CA certificates that https backends
# are verified against; nothing else, and no root.
#
#   docker build -t weir --build-arg VERSION=v0.1.0 --build-arg REVISION=$(git rev-parse HEAD) .
#   docker run --rm -v /etc/weir:/etc/weir:ro -p 8080:8080 -p 8086:8086 weir

# By its digest, for the same image every time: a tag can move. A new Go gets its
# tag and its digest from "docker buildx imagetools inspect golang:TAG".
FROM golang:1.26.8-bookworm@sha256:a688600ca24f8a4d3ca77f95b0dd40704a9fc787c826660eb7ba0b641b8b175d AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=
ARG REVISION=
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=${VERSION} -X main.revision=${REVISION}" -o /out/weir ./cmd/weir

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/weir /usr/bin/weir
USER 65532:65532
# The health port of the examples. Listeners have the ports of the configuration.
EXPOSE 8086
ENTRYPOINT ["/usr/bin/weir"]
CMD ["run", "-c", "/etc/weir/weir.yaml"]
