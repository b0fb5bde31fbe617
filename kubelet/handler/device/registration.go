package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

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

	kubelet sync.Mutex // for the fields below
	socket  *unixsock.Listener
	closed  bool
	health  error
}

// NewRegistration returns the service. Call Clear before serving it, and Run
// while serving it.
func NewRegistration(dir string, h *Handler) *Registration {
	return &Registration{dir: dir, handler: h, logger: h.options.Logger, registered: map[[2]string]watch.Plugin{}, health: errors.New("kubelet.sock is not served yet")}
}

// Clear removes the directory's sockets, as a starting kubelet does, so that
// plugins register again. If a kubelet serves the directory, it only returns
// unixsock.ErrLive.
func (r *Registration) Clear(ctx context.Context) error {
	if err := os.MkdirAll(r.dir, 0o750); err != nil {
		return err
	}
	kubelet := filepath.Join(r.dir, KubeletSocket)
	if conn, err := unixsock.Dial(ctx, kubelet); err == nil {
		r.kubelet.Lock()
		r.health = nil // that kubelet's
		r.kubelet.Unlock()
		return errors.Join(fmt.Errorf("%w: %s", unixsock.ErrLive, kubelet), conn.Close())
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
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, r.handler.options.Pause) {
		if instance.Connect(ctx, path) == nil || !wait(ctx, pause) {
			return
		}
	}
}

// registrationPoll is the check interval in addition to inotify; the watch is
// renewed each time.
const registrationPoll = 2 * time.Second

// Listen creates kubelet.sock. Run creates it again when it is removed or
// replaced; plugins that watch it then register again.
func (r *Registration) Listen(ctx context.Context) (net.Listener, error) {
	r.kubelet.Lock()
	defer r.kubelet.Unlock()
	if err := r.listen(ctx); err != nil {
		return nil, err
	}
	return listener{r, r.socket.Addr()}, nil
}

func (r *Registration) listen(ctx context.Context) error {
	l, err := unixsock.Listen(ctx, unixsock.Address{Path: filepath.Join(r.dir, KubeletSocket), SharedDir: true, AnyLength: true})
	if r.health = err; err == nil {
		r.socket = l
	}
	return err
}

// Health returns nil while plugins find kubelet.sock.
func (r *Registration) Health() error {
	r.kubelet.Lock()
	defer r.kubelet.Unlock()
	if r.health == nil && r.socket != nil && !r.closed { // the next check of Run can be later
		switch seen, err := r.socket.Look(); {
		case err != nil:
			return err
		case seen != unixsock.Ours:
			return fmt.Errorf("%s is %s", filepath.Join(r.dir, KubeletSocket), seen)
		}
	}
	return r.health
}

// keep creates kubelet.sock again if plugins no longer find it.
func (r *Registration) keep(ctx context.Context) {
	r.kubelet.Lock()
	defer r.kubelet.Unlock()
	if r.closed || r.socket == nil {
		return
	}
	seen, err := r.socket.Look()
	if err != nil || seen == unixsock.Ours {
		r.health = err
		return
	}
	lost, before := r.socket, r.health
	if err := os.MkdirAll(r.dir, 0o750); err != nil {
		r.health = fmt.Errorf("socket %s is %s: %w", KubeletSocket, seen, err)
	} else if r.listen(ctx) == nil {
		r.logger.Warn("socket lost, created again", "socket", filepath.Join(r.dir, KubeletSocket), "reason", string(seen))
		if err := lost.Close(); err != nil {
			r.logger.Warn("closing lost socket failed", "socket", filepath.Join(r.dir, KubeletSocket), "err", err)
		}
	}
	if r.health != nil && before == nil {
		r.logger.Error("socket lost, will retry", "socket", filepath.Join(r.dir, KubeletSocket), "err", r.health)
	}
}

// listener accepts from the current kubelet.sock.
type listener struct {
	*Registration
	addr net.Addr
}

func (l listener) Accept() (net.Conn, error) {
	for {
		from, _ := l.current()
		c, err := from.Accept()
		if err == nil {
			return c, nil
		}
		if now, closed := l.current(); closed || now == from {
			return nil, err
		}
	}
}

func (l listener) current() (*unixsock.Listener, bool) {
	l.kubelet.Lock()
	defer l.kubelet.Unlock()
	return l.socket, l.closed
}

func (l listener) Close() error {
	l.kubelet.Lock()
	defer l.kubelet.Unlock()
	l.closed = true
	return l.socket.Close()
}

func (l listener) Addr() net.Addr { return l.addr }

// Run deregisters plugins whose sockets are removed, and maintains kubelet.sock.
func (r *Registration) Run(ctx context.Context) {
	for ctx.Err() == nil {
		err := r.await(ctx)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			wait(ctx, registrationPoll)
		}
		r.sweep(ctx)
		r.keep(ctx)
	}
}

func (r *Registration) await(ctx context.Context) error {
	w, err := inotify.New()
	if err != nil {
		return err
	}
	defer w.Close()
	if _, err := w.Add(r.dir, inotify.Delete|inotify.MovedFrom|inotify.DeleteSelf|inotify.MoveSelf|inotify.OnlyDir); err != nil {
		return err
	}
	r.sweep(ctx) // earlier removals
	r.keep(ctx)
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
