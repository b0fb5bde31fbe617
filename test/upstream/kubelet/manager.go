// Package kubelet runs Kubernetes' plugin manager as a plugin host, to compare
// it with the project's own.
package kubelet

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/cache"

	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/kubelet/watch/watchtest"
)

// Quiet bounds the manager's reaction time: its polling period is a second.
const Quiet = 3 * time.Second

// Silence discards Kubernetes' log. The Manager reads what is logged with a
// context.
func Silence() {
	klog.SetLogger(logr.Discard())
}

// Manager is the kubelet's plugin manager, run as in the kubelet.
type Manager struct {
	manager pluginmanager.PluginManager
	stop    context.CancelFunc
	ended   sync.WaitGroup
}

// New returns a manager of a directory.
func New(dir string, handlers map[string]watch.Handler) *Manager {
	m := &Manager{manager: pluginmanager.NewPluginManager(dir, &record.FakeRecorder{}), stop: func() {}}
	for kind, h := range handlers {
		m.manager.AddHandler(kind, Handler(h))
	}
	return m
}

// Start returns when the manager watches the directory or has given up. It
// never fails, as the manager reports that only in its log.
func (m *Manager) Start(ctx context.Context) error {
	started := make(chan struct{})
	ctx = klog.NewContext(context.WithoutCancel(ctx), logr.FromSlogHandler(&upTo{text: "Starting Kubelet Plugin Manager", reached: started}))
	ctx, m.stop = context.WithCancel(ctx) // for the reconciler, which ignores the channel
	given := make(chan struct{})
	become := watchtest.SameUser()
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	m.ended.Go(func() {
		defer close(given)
		if err := become(); err != nil {
			panic(err)
		}
		m.manager.Run(ctx, ready, ctx.Done())
	})
	select {
	case <-started:
	case <-given:
	}
	return nil
}

// Handle adds a handler.
func (m *Manager) Handle(kind string, h watch.Handler) error {
	m.AddHandler(kind, Handler(h))
	return nil
}

// AddHandler adds one of the kubelet's own handlers.
func (m *Manager) AddHandler(kind string, h cache.PluginHandler) { m.manager.AddHandler(kind, h) }

// Close stops the manager, which deregisters nothing.
func (m *Manager) Close(context.Context) error {
	m.stop()
	m.ended.Wait()
	return nil
}

// upTo is a log that waits for a line.
type upTo struct {
	text    string
	reached chan struct{}
	once    sync.Once
}

func (*upTo) Enabled(context.Context, slog.Level) bool { return true }
func (l *upTo) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l *upTo) WithGroup(string) slog.Handler          { return l }
func (l *upTo) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, l.text) {
		l.once.Do(func() { close(l.reached) })
	}
	return nil
}

// Handler runs a handler of this project in the kubelet's manager.
func Handler(h watch.Handler) cache.PluginHandler { return handler{h} }

type handler struct{ watch.Handler }

func (h handler) ValidatePlugin(ctx context.Context, name, endpoint string, versions []string) error {
	return h.Validate(ctx, watch.Plugin{Name: name, Endpoint: endpoint, Versions: versions})
}

func (h handler) RegisterPlugin(ctx context.Context, name, endpoint string, versions []string, timeout *time.Duration) error {
	if timeout != nil {
		return errors.New("the kubelet sets a timeout, which this adapter does not support")
	}
	return h.Register(ctx, watch.Plugin{Name: name, Endpoint: endpoint, Versions: versions})
}

// DeRegisterPlugin ignores what Manager.Close causes: it cancels the context of a
// Notify whose answer is on its way, which the manager then handles as a failed
// one. A kubelet that is stopped ends its process.
func (h handler) DeRegisterPlugin(ctx context.Context, name, endpoint string) {
	if ctx.Err() != nil {
		return
	}
	_ = h.DeRegister(ctx, watch.Plugin{Name: name, Endpoint: endpoint})
}
