package server

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	health "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// A stopped peer is disconnected, one that responds is not. Responses can be
// late on a stalled machine, so the timeout is increased.
func TestKeepaliveEndsWhoDoesNotAnswer(t *testing.T) {
	for patience := time.Second; ; patience *= 2 {
		err := endsTheSilent(t, patience)
		if err == nil {
			return
		}
		if patience > 10*time.Second {
			t.Fatalf("the responsive peer was disconnected: %v", err)
		}
	}
}

func endsTheSilent(t *testing.T, patience time.Duration) error {
	r := newRig(t, "error", func(c *GRPCConfig) { c.Keepalive = patience })
	alive := make(chan error, 1)
	leave := make(chan struct{})
	r.service.answer = func(ctx context.Context) error {
		select {
		case <-ctx.Done():
		case <-leave:
		}
		return ctx.Err()
	}
	stream := testkit.Value(r.client.Watch(t.Context(), &health.HealthCheckRequest{}))(t)
	testkit.Value(stream.Recv())(t)
	go func() {
		_, err := stream.Recv()
		alive <- err
	}()
	stopped, err := net.Dial("unix", r.path)
	testkit.Must(t, err)
	defer func() { _ = stopped.Close() }()
	_ = stopped.SetDeadline(time.Now().Add(time.Minute))
	// The preface of HTTP/2 and its empty SETTINGS.
	testkit.Value(stopped.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00")))(t)
	for b := make([]byte, 1024); err == nil; {
		_, err = stopped.Read(b)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the silent peer is still connected")
	}
	select {
	case err := <-alive:
		return err
	default:
	}
	close(leave)
	<-alive
	return nil
}
