// Command cleat is the project's plugin host in the benchmark.
package main

import (
	"context"

	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/kubelet/watch/watchtest"
	"github.com/cleatproject/cleat/test/upstream/bench/host"
)

type ours struct{ *watch.Host }

func (o ours) Close(ctx context.Context) error { return o.Host.Close(ctx, false) }

func main() {
	host.Main(func(dir string, handlers map[string]watch.Handler) (watchtest.Host, error) {
		h, err := watch.New(watch.Options{Dir: dir, Handlers: handlers})
		return ours{h}, err
	})
}
