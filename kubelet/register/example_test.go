package register_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/cleatproject/cleat/kubelet/register"
)

// A device plugin registers itself after it serves its own socket.
func Example() {
	dir, err := os.MkdirTemp("", "plugins_registry-") // in production /var/lib/kubelet/plugins_registry
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r, err := register.New(register.Config{
		Dir: dir,
		Plugin: register.Plugin{
			Type: register.Device, Name: "vendor.com/device",
			Endpoint: "/var/lib/kubelet/plugins/vendor.com/device.sock", Versions: []string{"v1beta1"},
		},
		Logger: slog.Default(),
	})
	if err != nil {
		panic(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Serve(context.Background()) }()

	// … until the plugin stops.
	fmt.Println(r.Check(context.Background()) == nil)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fmt.Println(r.Stop(ctx), <-ended)
	// Output:
	// false
	// <nil> <nil>
}
