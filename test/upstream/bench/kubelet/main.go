// Command kubelet is the kubelet's plugin manager in the benchmark.
package main

import (
	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/kubelet/watch/watchtest"
	"github.com/cleatproject/cleat/test/upstream/bench/host"
	"github.com/cleatproject/cleat/test/upstream/kubelet"
)

func main() {
	kubelet.Silence()
	host.Main(func(dir string, handlers map[string]watch.Handler) (watchtest.Host, error) {
		return kubelet.New(dir, handlers), nil
	})
}
