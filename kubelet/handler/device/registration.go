package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/internal/backoff"
	"github.com/cleatproject/cleat/internal/linux/inotify"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/kubelet/handler/internal/instance"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// KubeletSocket is the socket for Register, beside the plugins' own.
const KubeletSocket = "kubelet.sock"

// Registration implements v1beta1.Registration for a directory. Plugins stay
// registered with the Handler until their sockets are removed.
type Registration struct {
	api.UnimplementedRegistrationServer

	dir     string
	handler *Handler
	logger  *slog.Logger

	mu         sync.Mutex
	registered map[[2]string]watch.Plugin // by resource and endpoint
}

// NewRegistration returns the service. Call Clear before serving it, and Run
// while serving it.
func NewRegistration(dir string, h *Handler) *Registration {
	return &Registration{dir: dir, handler: h, logger: h.options.Logger, registered: map[[2]string]watch.Plugin{}}
}

// Clear removes the directory's sockets, as a starting kubelet does, so that
// plugins register again. If a kubelet serves the directory, it only returns
// unixsock.ErrLive, and if that is not certain, another error.
func (r *Registration) Clear(ctx context.Context) error {
	if err := os.MkdirAll(r.dir, 0o750); err != nil {
		return err
	}
	kubelet := filepath.Join(r.dir, KubeletSocket)
	if err := unixsock.CheckDead(ctx, kubelet); err != nil {
		return fmt.Errorf("socket %s: %w", kubelet, err)
	}
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type()&fs.ModeSocket == 0 {
			continue
		}
		if err := os.Remove(filepath.Join(r.dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Register implements v1beta1.Registration; the version error is the kubelet's.
func (r *Registration) Register(ctx context.Context, q *api.RegisterRequest) (*api.Empty, error) {
	if q.GetVersion() != api.Version {
		return nil, fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q", q.GetVersion(), api.SupportedVersions)
	}
	if err := checkName(q.GetResourceName()); err != nil {
		return nil, fmt.Errorf("the ResourceName %q is invalid: %w", q.GetResourceName(), err)
	}
	if !filepath.IsLocal(q.GetEndpoint()) {
		return nil, fmt.Errorf("the endpoint %q is not the name of a socket in %s", q.GetEndpoint(), r.dir)
	}
	path := filepath.Join(r.dir, q.GetEndpoint())
	p := watch.Plugin{Type: Type, Name: q.GetResourceName(), Endpoint: path, Versions: []string{api.Version}, Socket: path}
	r.awaitEndpoint(ctx, path)
	if err := r.handler.Register(ctx, p); err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.registered[[2]string{p.Name, p.Endpoint}] = p
	r.mu.Unlock()
	r.logger.Info("device plugin registered", "resource", p.Name, "endpoint", p.Endpoint)
	return &api.Empty{}, nil
}

// awaitEndpoint dials for as long as the kubelet: plugins can call Register
// before they serve. The handler reports an endpoint that is still not served.
func (r *Registration) awaitEndpoint(ctx context.Context, path string) {
	ctx, cancel := context.WithTimeout(ctx, r.handler.options.Timeout)
	defer cancel()
	for pause := (backoff.Backoff{First: 10 * time.Millisecond, Most: r.handler.options.Pause, Jitter: true}); ; {
		if instance.Connect(ctx, path) == nil || pause.Wait(ctx) != nil {
			return
		}
	}
}

// registrationPoll is the check interval in addition to inotify; the watch is
// renewed each time.
const registrationPoll = 2 * time.Second

// Run deregisters plugins whose sockets are removed. It creates a removed directory
// again, so that kubelet.sock can be restored.
func (r *Registration) Run(ctx context.Context) {
	for ctx.Err() == nil {
		err := r.await(ctx)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			_ = backoff.Sleep(ctx, registrationPoll)
		}
		r.sweep(ctx)
	}
}

func (r *Registration) await(ctx context.Context) error {
	if err := os.MkdirAll(r.dir, 0o750); err != nil {
		return err
	}
	w, err := inotify.New()
	if err != nil {
		return err
	}
	defer w.Close()
	if _, err := w.Add(r.dir, inotify.Delete|inotify.MovedFrom|inotify.DeleteSelf|inotify.MoveSelf|inotify.OnlyDir); err != nil {
		return err
	}
	r.sweep(ctx) // earlier removals
	_, err = w.Read(ctx, time.Now().Add(registrationPoll), nil)
	return err
}

func (r *Registration) sweep(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, p := range r.registered {
		if _, err := os.Lstat(p.Socket); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		delete(r.registered, key)
		_ = r.handler.DeRegister(ctx, p) // never fails
		r.logger.Info("device plugin deregistered, socket removed", "resource", p.Name, "endpoint", p.Endpoint)
	}
}
