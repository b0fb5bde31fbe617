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
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// Directory registers several plugins, such as a device plugin's resources,
// each with its own socket.
type Directory struct {
	dir     string
	logger  *slog.Logger
	metrics prometheus.Registerer

	mu            sync.Mutex
	registrations map[string]*entry // by name
	closed        bool
}

type entry struct {
	registrar *Registrar
	collector prometheus.Collector
	result    chan error // latest
	ended     chan struct{}
}

// NewDirectory returns a Directory without plugins.
func NewDirectory(dir string, logger *slog.Logger, metrics prometheus.Registerer) *Directory {
	return &Directory{dir: dir, logger: logger, metrics: metrics, registrations: map[string]*entry{}}
}

// Register replaces a plugin's socket: a kubelet that lost a plugin retries
// only with a new one. It waits for the kubelet's result. It fails while
// another process registers the plugin.
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
		return errors.New("the registration socket is no longer served")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *Directory) begin(p Plugin) (*entry, error) {
	x := &entry{result: make(chan error, 1), ended: make(chan struct{})}
	var err error
	x.registrar, err = New(Config{Plugin: p, Dir: d.dir, Logger: d.logger, Metrics: d.metrics, OnResult: x.setResult})
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errors.New("the directory of registrations is closed")
	}
	x.collector = x.registrar.Collector()
	if err := d.metrics.Register(x.collector); err != nil {
		return nil, err
	}
	d.registrations[p.Name] = x
	go func() {
		defer close(x.ended)
		if err := x.registrar.Serve(context.Background()); err != nil {
			d.logger.Error("removing registration socket failed", "plugin", p.Name, "err", err)
		}
	}()
	return x, nil
}

func (x *entry) setResult(registered bool, text string) {
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

// Forget removes a plugin's socket, if any.
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

// Close removes all sockets, permanently.
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

// getInfoTimeout is longer than the kubelet's 1 s: a kubelet keeps a plugin that has
// become slow.
const getInfoTimeout = 3 * time.Second

// checkOthers fails if a live socket registers the same plugin, as the upstream
// SR-IOV device plugin can, and while a process does not answer whether it does. A
// kubelet knows plugins by name: the second would replace the first, and the end of
// either deregister the other.
func (d *Directory) checkOthers(ctx context.Context, p Plugin) error {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return fmt.Errorf("look for other plugins: %w", err)
	}
	var all errgroup.Group
	for _, e := range entries {
		if e.Type()&fs.ModeSocket != 0 && !strings.HasPrefix(e.Name(), ".") {
			all.Go(func() error { return checkOther(ctx, filepath.Join(d.dir, e.Name()), p) })
		}
	}
	return all.Wait()
}

func checkOther(ctx context.Context, socket string, p Plugin) error {
	info, err := getInfo(ctx, socket)
	switch {
	case err == nil && info.GetType() == p.Type && info.GetName() == p.Name:
		return fmt.Errorf("another device plugin is registered for %s with the socket %s; this one registers once the other is stopped", p.Name, socket)
	case err == nil, status.Code(err) == codes.Unimplemented, errors.Is(err, unix.EPROTOTYPE):
		return nil // of another plugin, or of none
	case unixsock.CheckDead(ctx, socket) == nil:
		return nil // also if its process ended during the call
	}
	return fmt.Errorf("it is not known whether another device plugin is registered for %s: the socket %s does not answer GetInfo (%w); this one registers once it answers, or its process is stopped", p.Name, socket, err)
}

func getInfo(ctx context.Context, socket string) (*registration.PluginInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, getInfoTimeout)
	defer cancel()
	conn, err := rpcdial.Connect(ctx, socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return registration.NewRegistrationClient(conn).GetInfo(ctx, &registration.InfoRequest{})
}
