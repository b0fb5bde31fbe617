package watch

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Options configure a Host. Only Dir is required; defaults are in parentheses.
type Options struct {
	// Dir, an absolute, clean path, is created with mode 0750 if missing. It
	// can be a symbolic link.
	Dir string
	// Initial handlers by type; Handle adds more.
	Handlers map[string]Handler

	Timeouts Timeouts
	BackOff  BackOff
	// Concurrency limits simultaneous new attempts (64), so that many plugins
	// do not cause timeouts. First attempts go before retries. An attempt counts
	// from the server's first data, for at most 20 ms.
	Concurrency int
	// Rescan is the interval for comparing the directory with the discovered
	// sockets (1 min).
	Rescan time.Duration
	// Grace is how long a plugin stays registered while its file remains but no
	// process listens on it, or on its endpoint. Zero means for ever, as in the kubelet; Status.Dead is
	// set anyway.
	Grace time.Duration
	// Peer refuses plugins by the serving process; nil accepts all. An error is
	// a failure to connect. Calls are concurrent.
	Peer func(Peer) error

	Logger  *slog.Logger
	Metrics prometheus.Registerer
}

// Peer is the process that listens, from SO_PEERCRED: IDs at the time of
// listen(2), in this process's namespaces.
type Peer struct {
	PID      int32
	UID, GID uint32
}

// Timeouts bound an attempt's steps. The kubelet has none for handler calls.
type Timeouts struct {
	Dial       time.Duration // until HTTP/2 (10 s)
	GetInfo    time.Duration // 1 s
	Validate   time.Duration // 30 s
	Register   time.Duration // 5 min
	Notify     time.Duration // 5 s
	DeRegister time.Duration // 1 min
}

// BackOff is the delay between attempts: First, doubled up to Most. A new
// socket starts with First.
type BackOff struct {
	First time.Duration // 500 ms
	Most  time.Duration // 2 min 2 s
	// Jitter is the random part of each delay: 0.2, the default, is 80 to 100
	// %. Negative means no jitter.
	Jitter float64
}

func (o Options) complete() (Options, error) {
	var wrong []error
	switch {
	case o.Dir == "":
		wrong = append(wrong, errors.New("the plugin directory is not set; the kubelet's is /var/lib/kubelet/plugins_registry"))
	case strings.ContainsRune(o.Dir, 0):
		wrong = append(wrong, fmt.Errorf("the directory %q contains a NUL byte", o.Dir))
	case o.Dir == "/":
		wrong = append(wrong, errors.New("the plugin directory must not be the root directory"))
	case !filepath.IsAbs(o.Dir) || filepath.Clean(o.Dir) != o.Dir:
		wrong = append(wrong, fmt.Errorf("the directory %q must be an absolute, clean path", o.Dir))
	}
	for kind, handler := range o.Handlers {
		wrong = append(wrong, checkHandler(kind, handler))
	}
	for _, d := range []struct {
		name     string
		value    *time.Duration
		fallback time.Duration
	}{
		{"Timeouts.Dial", &o.Timeouts.Dial, 10 * time.Second},
		{"Timeouts.GetInfo", &o.Timeouts.GetInfo, time.Second},
		{"Timeouts.Validate", &o.Timeouts.Validate, 30 * time.Second},
		{"Timeouts.Register", &o.Timeouts.Register, 5 * time.Minute},
		{"Timeouts.Notify", &o.Timeouts.Notify, 5 * time.Second},
		{"Timeouts.DeRegister", &o.Timeouts.DeRegister, time.Minute},
		{"BackOff.First", &o.BackOff.First, 500 * time.Millisecond},
		{"BackOff.Most", &o.BackOff.Most, 2*time.Minute + 2*time.Second},
		{"Rescan", &o.Rescan, time.Minute},
		{"Grace", &o.Grace, 0},
	} {
		switch {
		case *d.value < 0:
			wrong = append(wrong, fmt.Errorf("%s is %s; it must not be negative", d.name, *d.value))
		case *d.value == 0:
			*d.value = d.fallback
		}
	}
	if o.BackOff.First > o.BackOff.Most {
		wrong = append(wrong, fmt.Errorf("BackOff.First is %s, more than BackOff.Most, which is %s", o.BackOff.First, o.BackOff.Most))
	}
	switch j := o.BackOff.Jitter; {
	case j == 0:
		o.BackOff.Jitter = 0.2
	case j < 0:
		o.BackOff.Jitter = 0
	case !(j <= 1):
		wrong = append(wrong, fmt.Errorf("BackOff.Jitter is %g; it must be at most 1", j))
	}
	switch {
	case o.Concurrency < 0:
		wrong = append(wrong, fmt.Errorf("option Concurrency is %d; it must be at least 1", o.Concurrency))
	case o.Concurrency == 0:
		o.Concurrency = 64
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, errors.Join(wrong...)
}

func checkHandler(kind string, handler Handler) error {
	switch {
	case kind == "":
		return errors.New("the type of a handler is empty; it must be a plugin type such as CSIPlugin")
	case handler == nil:
		return fmt.Errorf("the handler for %s is nil", kind)
	}
	return nil
}
