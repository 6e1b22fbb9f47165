# An image with one static binary and the CA certificates that https backends
# are verified against; nothing else, and no root.
#
#   docker build -t weir --build-arg VERSION=v0.1.0 .
#   docker run --rm -v /etc/weir:/etc/weir:ro -p 8080:8080 -p 8086:8086 weir

FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=${VERSION}" -o /out/weir ./cmd/weir

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/weir /usr/bin/weir
USER 65532:65532
# The health port of the examples. Listeners have the ports of the configuration.
EXPOSE 8086
ENTRYPOINT ["/usr/bin/weir"]
CMD ["run", "-c", "/etc/weir/weir.yaml"]
