package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/kubelet/register"
	"github.com/cleatproject/cleat/sriov/plugin"
)

// pluginWatcher registers resources through the directory that the kubelet
// watches: a registration socket for each.
type pluginWatcher struct {
	dir     string
	logger  *slog.Logger
	metrics prometheus.Registerer

	mu     sync.Mutex
	live   map[string]*watched
	closed bool
}

// watched is one registration with what serves it.
type watched struct {
	registrar *register.Registrar
	collector prometheus.Collector
	word      chan error // the kubelet's, the last one
	cancel    context.CancelFunc
	ended     chan struct{}
}

func newPluginWatcher(dir string, logger *slog.Logger, metrics prometheus.Registerer) *pluginWatcher {
	return &pluginWatcher{dir: dir, logger: logger, metrics: metrics, live: map[string]*watched{}}
}

// Register puts a new socket into the directory, in the place of the one before:
// a kubelet that has lost a plugin looks at it again only when its socket is new.
// It returns when the kubelet has said yes or no, however late that is. While
// another plugin registers for the resource it fails.
func (w *pluginWatcher) Register(ctx context.Context, r plugin.Registration) error {
	if err := w.Forget(ctx, r.Resource); err != nil {
		return err
	}
	if err := w.other(ctx, r.Resource); err != nil {
		return err
	}
	x, err := w.begin(r)
	if err != nil {
		return err
	}
	select {
	case err := <-x.word:
		return err
	case <-x.ended:
		return errors.New("the registration socket is served no more")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (w *pluginWatcher) begin(r plugin.Registration) (*watched, error) {
	x := &watched{word: make(chan error, 1), ended: make(chan struct{})}
	var err error
	x.registrar, err = register.New(register.Config{
		Plugin: register.Plugin{Type: register.Device, Name: r.Resource, Endpoint: r.Endpoint, Versions: []string{"v1beta1"}},
		Dir:    w.dir, Logger: w.logger, Metrics: w.metrics, Told: x.hear,
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
	ctx, cancel := context.WithCancel(context.Background())
	x.cancel = cancel
	w.live[r.Resource] = x
	go func() {
		defer close(x.ended)
		if err := x.registrar.Serve(ctx); err != nil {
			w.logger.Error("a registration socket is left behind", "resource", r.Resource, "error", err)
		}
	}()
	return x, nil
}

// hear keeps the kubelet's last word.
func (x *watched) hear(registered bool, text string) {
	var err error
	if !registered {
		err = fmt.Errorf("the kubelet refused the registration: %s", text)
	}
	select {
	case <-x.word:
	default:
	}
	select {
	case x.word <- err:
	default:
	}
}

// Forget takes the socket of a resource away.
func (w *pluginWatcher) Forget(ctx context.Context, resource string) error {
	w.mu.Lock()
	x := w.live[resource]
	delete(w.live, resource)
	w.mu.Unlock()
	if x == nil {
		return nil
	}
	err := x.registrar.Stop(ctx)
	x.cancel()
	<-x.ended
	w.metrics.Unregister(x.collector)
	return err
}

// close takes all sockets away that are left.
func (w *pluginWatcher) close(ctx context.Context) error {
	w.mu.Lock()
	w.closed = true
	var names []string
	for name := range w.live {
		names = append(names, name)
	}
	w.mu.Unlock()
	var errs []error
	for _, name := range names {
		errs = append(errs, w.Forget(ctx, name))
	}
	return errors.Join(errs...)
}
