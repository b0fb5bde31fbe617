// Package register is the plugin side of the kubelet's plugin registration
// (pluginregistration v1), instead of a registrar sidecar. It maintains the
// socket in the host's directory, serves the API, and reports the state.
package register

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/unixsock"
)

const (
	defaultSilence = 30 * time.Second
	defaultEvery   = 2 * time.Second
	// minSocketAge: a younger lost socket is not recreated at once, as a
	// process removes it just as fast.
	minSocketAge = time.Second
)

// Registrar registers a plugin with the host that watches the directory. Call
// Serve once the endpoint is served, and Stop before it ends.
type Registrar struct {
	plugin   Plugin
	socket   string
	silence  time.Duration
	every    time.Duration
	logger   *slog.Logger
	server   *server.GRPC
	onResult func(registered bool, text string)

	stop    sync.Once
	stopped chan struct{}
	loop    sync.Mutex // while Serve runs

	mu     sync.Mutex
	record record

	reports reporter
}

// New returns a Registrar and creates nothing. Conditions that can change, such
// as a missing directory, are part of Status instead of an error.
func New(c Config) (*Registrar, error) {
	socket, err := c.check()
	if err != nil {
		return nil, fmt.Errorf("registration: %w", err)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Silence == 0 {
		c.Silence = defaultSilence
	}
	if c.Every == 0 {
		c.Every = defaultEvery
	}
	r := &Registrar{
		plugin: c.Plugin, socket: socket, silence: c.Silence, every: c.Every, logger: c.Logger, onResult: c.OnResult,
		stopped: make(chan struct{}),
		record:  record{missing: errors.New("the registration has not been started"), changed: time.Now()},
	}
	r.server, err = server.NewGRPC(server.GRPCConfig{
		Logger: c.Logger, Metrics: c.Metrics, Code: status.Code,
		Quiet: func(string) bool { return true }, // this package logs the results
	})
	if err != nil {
		return nil, fmt.Errorf("registration: %w", err)
	}
	registration.RegisterRegistrationServer(r.server, service{Registrar: r})
	return r, nil
}

// Serve maintains and serves the registration socket until Stop or the end of
// ctx. It fails only if it cannot remove the socket.
func (r *Registrar) Serve(ctx context.Context) error {
	r.loop.Lock()
	defer r.loop.Unlock()
	inner, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		defer cancel()
		select {
		case <-r.stopped:
		case <-inner.Done():
		}
	})
	k := &reconciler{Registrar: r, serving: &running, ctx: ctx}
	watch := newSocketWatcher(r.socket, r.logger)
	defer watch.close()
	for inner.Err() == nil && !r.isStopped() {
		watch.arm()
		k.reconcile(inner)
		k.findWatchers()
		r.report()
		watch.wait(inner, k.pause())
	}
	err := k.withdraw()
	if ctx.Err() != nil { // without Stop
		_ = r.server.Drain(ctx)
	}
	return err
}

// Stop removes the socket, so that the host deregisters the plugin, and waits
// for in-flight calls.
func (r *Registrar) Stop(ctx context.Context) error {
	r.stop.Do(func() { close(r.stopped) })
	r.loop.Lock()
	defer r.loop.Unlock()
	return r.server.Drain(ctx)
}

func (r *Registrar) isStopped() bool {
	select {
	case <-r.stopped:
		return true
	default:
		return false
	}
}

// Status returns the registration's state.
func (r *Registrar) Status() Status {
	r.mu.Lock()
	s := r.record.status(time.Now(), r.silence)
	r.mu.Unlock()
	s.Plugin, s.Socket = r.plugin, r.socket
	return s
}

// Check returns an error while the plugin is not registered, for /readyz.
func (r *Registrar) Check(context.Context) error {
	switch s := r.Status(); {
	case s.State == Registered:
		return nil
	case s.Error != "":
		return fmt.Errorf("not registered (%s): %s; %s", s.State, s.Error, s.Reason)
	case s.Reason != "":
		return fmt.Errorf("not registered (%s): %s", s.State, s.Reason)
	case s.State == Asked:
		return errors.New("not registered (asked): a host has called GetInfo and has not reported a result yet")
	default:
		return fmt.Errorf("not registered (%s): no host has called GetInfo yet", s.State)
	}
}

func (r *Registrar) update(change func(*record, time.Time)) {
	r.mu.Lock()
	change(&r.record, time.Now())
	r.mu.Unlock()
	r.report()
}

// reconciler maintains the socket, for Serve.
type reconciler struct {
	*Registrar
	serving   *sync.WaitGroup
	ctx       context.Context // RPCs outlive the loop until Stop has drained them
	listener  *unixsock.Listener
	created   time.Time
	notBefore time.Time // for a new socket
}
