package adapter_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/cleatproject/cleat/kubelet/handler/adapter"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// drivers is a handler that somebody wrote for the kubelet.
type drivers struct{}

func (drivers) ValidatePlugin(name, endpoint string, versions []string) error { return nil }

func (drivers) RegisterPlugin(name, endpoint string, versions []string, _ *time.Duration) error {
	fmt.Println("register", name, endpoint)
	return nil
}

func (drivers) DeRegisterPlugin(name, endpoint string) { fmt.Println("deregister", name, endpoint) }

func Example() {
	ctx := context.Background()
	h := adapter.New(drivers{}, slog.Default())
	// handlers is what the host of plugins is given.
	handlers := map[string]watch.Handler{"CSIPlugin": h}

	p := watch.Plugin{Type: "CSIPlugin", Name: "csi.example.com", Endpoint: "/run/csi.sock", Versions: []string{"1.0.0"}}
	if err := handlers[p.Type].Register(ctx, p); err != nil {
		log.Fatal(err)
	}
	if err := handlers[p.Type].DeRegister(ctx, p); err != nil {
		log.Fatal(err)
	}
	if err := h.Close(ctx); err != nil { // after the host was closed
		log.Fatal(err)
	}
	// Output:
	// register csi.example.com /run/csi.sock
	// deregister csi.example.com /run/csi.sock
}
