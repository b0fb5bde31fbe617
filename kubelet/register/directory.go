package register

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
)

// Directory registers several plugins of a process, as the resources of a device
// plugin, in the directory that a kubelet watches: each with a registration socket.
type Directory struct {
	dir     string
	logger  *slog.Logger
	metrics prometheus.Registerer

	mu            sync.Mutex
	registrations map[string]*listed // by the plugin's name
	closed        bool
}

// listed is the registration socket of a plugin.
type listed struct {
	registrar *Registrar
	collector prometheus.Collector
	result    chan error // the kubelet's latest
	ended     chan struct{}
}

// NewDirectory returns a Directory without plugins.
func NewDirectory(dir string, logger *slog.Logger, metrics prometheus.Registerer) *Directory {
	return &Directory{dir: dir, logger: logger, metrics: metrics, registrations: map[string]*listed{}}
}

// Register replaces the socket of a plugin by a new one: a kubelet that lost a
// plugin retries only with a new socket. It waits without bound for the kubelet's
// answer. It fails while another process registers a plugin of this type and name.
func (d *Directory) Register(ctx context.Context, p Plugin) error {
	if err := d.Forget(ctx, p.Name); err != nil {
		return err
	}
	if err := d.checkOthers(ctx, p); err != nil {
		return err
	}
	x, err := d.begin(p)
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

func (d *Directory) begin(p Plugin) (*listed, error) {
	x := &listed{result: make(chan error, 1), ended: make(chan struct{})}
	var err error
	x.registrar, err = New(Config{Plugin: p, Dir: d.dir, Logger: d.logger, Metrics: d.metrics, Told: x.keepResult})
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errors.New("the plugins stop")
	}
	x.collector = x.registrar.Collector()
	if err := d.metrics.Register(x.collector); err != nil {
		return nil, err
	}
	d.registrations[p.Name] = x
	go func() {
		defer close(x.ended)
		if err := x.registrar.Serve(context.Background()); err != nil {
			d.logger.Error("a registration socket is left behind", "plugin", p.Name, "error", err)
		}
	}()
	return x, nil
}

// keepResult keeps the kubelet's latest answer.
func (x *listed) keepResult(registered bool, text string) {
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

// Forget removes the socket of a plugin.
func (d *Directory) Forget(ctx context.Context, name string) error {
	d.mu.Lock()
	x := d.registrations[name]
	delete(d.registrations, name)
	d.mu.Unlock()
	if x == nil {
		return nil
	}
	err := x.registrar.Stop(ctx)
	<-x.ended
	d.metrics.Unregister(x.collector)
	return err
}

// Close removes all sockets; no plugin can be registered any more.
func (d *Directory) Close(ctx context.Context) error {
	d.mu.Lock()
	d.closed = true
	names := slices.Collect(maps.Keys(d.registrations))
	d.mu.Unlock()
	var all error
	for _, name := range names {
		all = errors.Join(all, d.Forget(ctx, name))
	}
	return all
}

// othersBound is how long a plugin in the directory has to answer GetInfo; the
// kubelet waits as long.
const othersBound = time.Second

// checkOthers fails if a live socket in the directory registers such a plugin, as
// that of the upstream SR-IOV device plugin does. A kubelet identifies plugins by
// name: the second would replace the first, and the end of either would deregister
// the other.
func (d *Directory) checkOthers(ctx context.Context, p Plugin) error {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return fmt.Errorf("look for other plugins: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, othersBound)
	defer cancel()
	var all sync.WaitGroup
	found := make([]bool, len(entries))
	for n, e := range entries {
		if e.Type()&fs.ModeSocket != 0 && !strings.HasPrefix(e.Name(), ".") {
			all.Go(func() { found[n] = registersFor(ctx, filepath.Join(d.dir, e.Name()), p) })
		}
	}
	all.Wait()
	for n, yes := range found {
		if yes {
			return fmt.Errorf("another device plugin is registered for %s with the socket %s; end it, and this one registers", p.Name, filepath.Join(d.dir, entries[n].Name()))
		}
	}
	return nil
}

// registersFor reports whether a socket registers a plugin of this type and name.
func registersFor(ctx context.Context, socket string, p Plugin) bool {
	conn, err := rpcdial.Connect(ctx, socket)
	if err != nil {
		return false // nobody listens
	}
	defer conn.Close()
	info, err := registration.NewRegistrationClient(conn).GetInfo(ctx, &registration.InfoRequest{})
	return err == nil && info.GetType() == p.Type && info.GetName() == p.Name
}
