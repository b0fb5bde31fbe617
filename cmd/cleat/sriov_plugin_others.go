package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/internal/rpcdial"
)

// othersBound is how long a plugin in the directory may take to say who it is;
// the kubelet waits as long.
const othersBound = time.Second

// other returns an error that names a live socket in the directory whose plugin
// registers for a resource, as the upstream plugin does by the watcher. A kubelet
// knows plugins by resource, so the second would push out the first, and the end
// of either would take the other out of use.
func (w *pluginWatcher) other(ctx context.Context, resource string) error {
	entries, err := os.ReadDir(w.dir)
	if err != nil {
		return fmt.Errorf("look for other device plugins: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, othersBound)
	defer cancel()
	var all sync.WaitGroup
	found := make([]bool, len(entries))
	for n, e := range entries {
		if e.Type()&fs.ModeSocket != 0 && !strings.HasPrefix(e.Name(), ".") {
			all.Go(func() { found[n] = registersFor(ctx, filepath.Join(w.dir, e.Name()), resource) })
		}
	}
	all.Wait()
	for n, yes := range found {
		if yes {
			return fmt.Errorf("another device plugin is registered for %s with the socket %s; end it, and this one registers", resource, filepath.Join(w.dir, entries[n].Name()))
		}
	}
	return nil
}

// registersFor asks a plugin which resource it registers.
func registersFor(ctx context.Context, socket, resource string) bool {
	conn, err := rpcdial.Connect(ctx, socket)
	if err != nil {
		return false // nobody listens
	}
	defer conn.Close()
	info, err := registration.NewRegistrationClient(conn).GetInfo(ctx, &registration.InfoRequest{})
	return err == nil && info.GetType() == registration.DevicePlugin && info.GetName() == resource
}
