package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/kubelet/register"
	"github.com/cleatproject/cleat/sriov/plugin"
)

// pluginWatcher registers resources through the directory that the kubelet
// watches: with a registration socket for each.
type pluginWatcher struct {
	dir     string
	logger  *slog.Logger
	metrics prometheus.Registerer

	mu            sync.Mutex
	registrations map[string]*watcherRegistration // by resource
	closed        bool
}

// watcherRegistration is the registration socket of a resource.
type watcherRegistration struct {
	registrar *register.Registrar
	collector prometheus.Collector
	result    chan error // the kubelet's latest
	ended     chan struct{}
}

func newPluginWatcher(dir string, logger *slog.Logger, metrics prometheus.Registerer) *pluginWatcher {
	return &pluginWatcher{dir: dir, logger: logger, metrics: metrics, registrations: map[string]*watcherRegistration{}}
}

// Register replaces the socket of a resource by a new one: a kubelet that lost a
// plugin retries only with a new socket. It waits without bound for the kubelet's
// answer. It fails while another plugin registers the resource.
func (w *pluginWatcher) Register(ctx context.Context, r plugin.Registration) error {
	if err := w.Forget(ctx, r.Resource); err != nil {
		return err
	}
	if err := w.checkOthers(ctx, r.Resource); err != nil {
		return err
	}
	x, err := w.begin(r)
	if err != nil {
		return err
	}
	select {
	case err := <-x.result:
		return err
	case <-x.ended:
		return errors.New("the registration socket is served no more")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (w *pluginWatcher) begin(r plugin.Registration) (*watcherRegistration, error) {
	x := &watcherRegistration{result: make(chan error, 1), ended: make(chan struct{})}
	var err error
	x.registrar, err = register.New(register.Config{
		Plugin: register.Plugin{Type: register.Device, Name: r.Resource, Endpoint: r.Endpoint, Versions: []string{"v1beta1"}},
		Dir:    w.dir, Logger: w.logger, Metrics: w.metrics, Told: x.keepResult,
	})
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, errors.New("the plugin stops")
	}
	x.collector = x.registrar.Collector()
	if err := w.metrics.Register(x.collector); err != nil {
		return nil, err
	}
	w.registrations[r.Resource] = x
	go func() {
		defer close(x.ended)
		if err := x.registrar.Serve(context.Background()); err != nil {
			w.logger.Error("a registration socket is left behind", "resource", r.Resource, "error", err)
		}
	}()
	return x, nil
}

// keepResult keeps the kubelet's latest answer.
func (x *watcherRegistration) keepResult(registered bool, text string) {
	var err error
	if !registered {
		err = fmt.Errorf("the kubelet refused the registration: %s", text)
	}
	select {
	case <-x.result:
	default:
	}
	select {
	case x.result <- err:
	default:
	}
}

// Forget removes the socket of a resource.
func (w *pluginWatcher) Forget(ctx context.Context, resource string) error {
	w.mu.Lock()
	x := w.registrations[resource]
	delete(w.registrations, resource)
	w.mu.Unlock()
	if x == nil {
		return nil
	}
	err := x.registrar.Stop(ctx)
	<-x.ended
	w.metrics.Unregister(x.collector)
	return err
}

// close removes all sockets.
func (w *pluginWatcher) close(ctx context.Context) error {
	w.mu.Lock()
	w.closed = true
	resources := slices.Collect(maps.Keys(w.registrations))
	w.mu.Unlock()
	var all error
	for _, resource := range resources {
		all = errors.Join(all, w.Forget(ctx, resource))
	}
	return all
}

// othersBound is how long a plugin in the directory has to answer GetInfo; the
// kubelet waits as long.
const othersBound = time.Second

// checkOthers fails if a live socket in the directory registers the resource, as
// the upstream plugin's does. A kubelet identifies plugins by resource: the second
// would replace the first, and the end of either would deregister the other.
func (w *pluginWatcher) checkOthers(ctx context.Context, resource string) error {
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

// registersFor reports whether the plugin at a socket registers a resource.
func registersFor(ctx context.Context, socket, resource string) bool {
	conn, err := rpcdial.Connect(ctx, socket)
	if err != nil {
		return false // nobody listens
	}
	defer conn.Close()
	info, err := registration.NewRegistrationClient(conn).GetInfo(ctx, &registration.InfoRequest{})
	return err == nil && info.GetType() == registration.DevicePlugin && info.GetName() == resource
}
