package server

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	health "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/test/testkit"
)

// Every socket of a server is created again after another program removed it or its
// directory. Until then the process is not ready.
func TestLostSocketsAreRestored(t *testing.T) {
	dir := testkit.Dir(t)
	endpoint, privileged, status := filepath.Join(dir, "e", "s.sock"), filepath.Join(dir, "p", "s.sock"), filepath.Join(dir, "t", "s.sock")
	p := &program{}
	answers := func(path string) error {
		conn, err := rpcdial.Connect(t.Context(), path)
		if err != nil {
			return err
		}
		_, err = health.NewHealthClient(conn).Check(t.Context(), &health.HealthCheckRequest{})
		return errors.Join(err, conn.Close())
	}
	all := func() error {
		var ready readiness
		err := Ask(t.Context(), status, "/readyz", &ready)
		if err == nil && !ready.Ready {
			err = errors.New("not ready")
		}
		return errors.Join(err, answers(endpoint), answers(privileged))
	}
	finish := errors.New("the test is done")
	p.assemble = func(context.Context) error {
		p.AllowUIDs = []uint{12345} // a listener around the socket
		register := func(r grpc.ServiceRegistrar) error {
			health.RegisterHealthServer(r, &service{answer: func(context.Context) error { return nil }})
			return nil
		}
		p.AddTelemetry()
		p.AddService(Service{Name: "a", GRPC: GRPCConfig{Code: table}, Listen: p.ListenEndpoint, Register: register})
		p.AddService(Service{Name: "b", GRPC: GRPCConfig{Code: table}, Register: register, Listen: func(ctx context.Context) (net.Listener, error) {
			return p.ListenPrivileged(ctx, unixsock.Address{Path: privileged})
		}})
		p.Add(Part{Name: "test", Run: func(context.Context) error {
			testkit.EventuallyNil(t, "all sockets answer", all)
			for name, path := range map[string]string{"a socket": endpoint, "b socket": privileged} {
				file := filepath.Join(dir, "file") // a file that stays until it is removed
				if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Rename(file, path)); err != nil {
					return err
				}
				if err := p.checks[name](t.Context()); err == nil || !strings.Contains(err.Error(), "is replaced") {
					t.Errorf("%s is ready without its file: %v", name, err)
				}
				if err := os.Remove(path); err != nil {
					return err
				}
			}
			testkit.EventuallyNil(t, "the removed sockets are back", all)
			for _, path := range []string{endpoint, privileged, status} {
				if err := os.RemoveAll(filepath.Dir(path)); err != nil {
					return err
				}
			}
			testkit.EventuallyNil(t, "the sockets of removed directories are back", all)
			return finish
		}})
		return nil
	}
	if err := p.execute(t, "--endpoint", endpoint, "--metrics-address", status); !errors.Is(err, finish) {
		t.Errorf("the server ended: %v", err)
	}
	for _, path := range []string{endpoint, privileged, status} {
		testkit.WantError(t, path, testkit.Err(os.Lstat(path)), os.ErrNotExist)
	}
}
