package watch_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"github.com/cleatproject/cleat/kubelet/watch"
)

// printer is a handler that accepts every plugin.
type printer struct{}

func (printer) Validate(context.Context, watch.Plugin) error { return nil }

func (printer) Register(_ context.Context, p watch.Plugin) error {
	fmt.Println(p.Name, "serves on", p.Endpoint)
	return nil
}

func (printer) DeRegister(_ context.Context, p watch.Plugin) error {
	fmt.Println(p.Name, "is gone")
	return nil
}

// A host that runs until it is interrupted, and logs every step.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	h, err := watch.New(watch.Options{
		Dir:      "/run/plugins",
		Handlers: map[string]watch.Handler{"CSIPlugin": printer{}},
		Grace:    10 * time.Second,
		Logger:   slog.Default(),
	})
	if err != nil {
		slog.Error("invalid options", "err", err)
		return
	}
	if err := h.Start(ctx); err != nil {
		slog.Error("plugin host start failed", "err", err)
		return
	}
	for e := range h.Subscribe(ctx) {
		fmt.Println(e.Status.Socket, e.Status.Phase, e.Status.Error)
	}
	ending, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := h.Close(ending, true); err != nil {
		slog.Error("plugin host close failed", "err", err)
	}
}

// A program that needs a certain driver waits for it. On timeout the error
// contains the state of the driver.
func ExampleHost_Wait() {
	h, err := watch.New(watch.Options{Dir: "/run/plugins", Handlers: map[string]watch.Handler{"CSIPlugin": printer{}}})
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	driver, err := h.Wait(ctx, "CSIPlugin", "csi.example.com")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(driver.Endpoint)
}
