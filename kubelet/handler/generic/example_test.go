package generic_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cleatproject/cleat/kubelet/handler/generic"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// A program keeps the endpoint of a plugin where its other parts look for it.
// A plugin host would make these calls; this example makes them directly.
func Example() {
	ctx := context.Background()
	codecs := generic.New(generic.Options{OnChange: func(_ context.Context, n generic.Name) error {
		if p, found := n.Serving(); found {
			fmt.Println(n.Name, "is served at", p.Endpoint)
		} else {
			fmt.Println(n.Name, "is gone")
		}
		return nil // an error would be reported to the plugin
	}})

	before := watch.Plugin{Type: "Codec", Name: "opus", Endpoint: "/run/opus-1.sock"}
	update := watch.Plugin{Type: "Codec", Name: "opus", Endpoint: "/run/opus-2.sock"}
	for _, err := range []error{
		codecs.Register(ctx, before),
		codecs.Register(ctx, update),
		codecs.DeRegister(ctx, update), // the update was a bad one
		codecs.DeRegister(ctx, before),
	} {
		if err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// opus is served at /run/opus-1.sock
	// opus is served at /run/opus-2.sock
	// opus is served at /run/opus-1.sock
	// opus is gone
}

// Changes yields changes to a range loop, instead of OnChange.
func ExampleHandler_Changes() {
	ctx := context.Background()
	h := generic.New(generic.Options{})
	if err := h.Register(ctx, watch.Plugin{Type: "Codec", Name: "opus", Endpoint: "/run/opus.sock"}); err != nil {
		log.Fatal(err)
	}
	for n := range h.Changes(ctx) { // existing names come first
		p, _ := n.Serving()
		fmt.Println(n.Type, n.Name, p.Endpoint)
		break
	}
	// Output: Codec opus /run/opus.sock
}
