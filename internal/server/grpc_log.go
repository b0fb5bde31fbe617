package server

import (
	"bytes"
	"io"
	"log/slog"

	"google.golang.org/grpc/grpclog"
)

// logGRPC logs what the gRPC library reports by itself, such as the reason for
// which a peer ended a connection. The library has one logger per process.
func logGRPC(l *slog.Logger) {
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, grpcLines{l}))
}

// grpcLines receives a line such as "2026/01/01 00:00:30 ERROR: [transport] …"
// with each Write.
type grpcLines struct{ logger *slog.Logger }

func (g grpcLines) Write(line []byte) (int, error) {
	_, text, _ := bytes.Cut(line, []byte(": "))
	g.logger.Warn("gRPC connection failed", "err", string(bytes.TrimSpace(text)))
	return len(line), nil
}
