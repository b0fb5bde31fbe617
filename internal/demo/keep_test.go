package demo

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// lastProbe is a driver that ends after it has answered Probe.
type lastProbe struct {
	csi.UnimplementedIdentityServer
	answered chan struct{}
}

func (l *lastProbe) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	defer func() { l.answered <- struct{}{} }()
	return &csi.ProbeResponse{}, nil
}

// TestDriverThatEnds removes a demo whose driver ends meanwhile: a client asks
// again until its time is over, which is the time of the whole removal.
func TestDriverThatEnds(t *testing.T) {
	w := &walk{dir: t.TempDir()}
	socket := strings.TrimPrefix(w.endpoint(), "unix://")
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	driver, server := &lastProbe{answered: make(chan struct{}, 1)}, grpc.NewServer()
	csi.RegisterIdentityServer(server, driver)
	go func() {
		<-driver.answered
		server.GracefulStop() // closes and removes the socket
	}()
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	ended := exec.CommandContext(t.Context(), "true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := w.endDriver(ctx, ended.Process.Pid); err != nil || ctx.Err() != nil {
		t.Errorf("%v, %v; want none, and time for the rest", err, ctx.Err())
	}
}
