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

// Options are those of a host. Only Dir is needed; zero values get the default
// that is named with them.
type Options struct {
	// Dir is the directory below which plugins put their sockets: absolute and
	// clean, created with mode 0750 when missing. It can be a symbolic link.
	Dir string
	// Handlers are those known from the start, by type of plugin. Handle adds
	// others later.
	Handlers map[string]Handler

	Timeouts Timeouts
	BackOff  BackOff
	// Concurrency is how many attempts begin at once (64), so that a crowd of
	// plugins does not run into its own timeouts. Plugins that do not answer
	// within 20 ms no longer count.
	Concurrency int
	// Rescan is how often the directory is compared with what the kernel's events
	// reported (1 min). That also happens whenever the kernel dropped events.
	Rescan time.Duration
	// Grace is how long a plugin stays registered after nobody listens on its
	// socket any more and the file is still there. Zero: for ever, as in the
	// kubelet; its Status says Dead all the same.
	Grace time.Duration
	// Peer refuses a plugin by the process that serves its socket; nil: none is
	// refused. An error counts as a failure to connect. It is called concurrently.
	Peer func(Peer) error

	Logger  *slog.Logger          // nil: no log
	Metrics prometheus.Registerer // nil: no metrics
}

// Peer is the process that listens on a socket, as the kernel knows it: the
// ids at the time of listen(2), in the namespaces of this process.
type Peer struct {
	PID      int32
	UID, GID uint32
}

// Timeouts bound the steps of one attempt. The kubelet has the same for Dial,
// GetInfo and Notify, and none for the calls of handlers.
type Timeouts struct {
	Dial       time.Duration // until the plugin speaks HTTP/2 (10 s)
	GetInfo    time.Duration // 1 s
	Validate   time.Duration // 30 s
	Register   time.Duration // 5 min
	Notify     time.Duration // 5 s
	DeRegister time.Duration // 1 min
}

// BackOff is the pause between attempts at one socket: First, doubled with each
// failure up to Most. A new socket at the same path starts with First.
type BackOff struct {
	First time.Duration // 500 ms
	Most  time.Duration // 2 min 2 s
	// Jitter is the random part of each pause, so that plugins that failed
	// together are not retried together: 0.2 makes it 80 to 100 % of its length.
	// Zero is 0.2, negative is none.
	Jitter float64
}

// complete checks the options and fills in what is zero.
func (o Options) complete() (Options, error) {
	var wrong []error
	switch {
	case o.Dir == "":
		wrong = append(wrong, errors.New("the directory for sockets of plugins is not set; kubelet's is /var/lib/kubelet/plugins_registry"))
	case strings.ContainsRune(o.Dir, 0):
		wrong = append(wrong, fmt.Errorf("the directory %q holds a NUL", o.Dir))
	case o.Dir == "/":
		wrong = append(wrong, errors.New("the directory for sockets of plugins must not be the whole file system"))
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
		wrong = append(wrong, fmt.Errorf("the first pause, BackOff.First, is %s, more than BackOff.Most with %s", o.BackOff.First, o.BackOff.Most))
	}
	switch j := o.BackOff.Jitter; {
	case j == 0:
		o.BackOff.Jitter = 0.2
	case j < 0:
		o.BackOff.Jitter = 0
	case !(j <= 1):
		wrong = append(wrong, fmt.Errorf("the BackOff.Jitter %g is more than the whole pause, which is 1", j))
	}
	switch {
	case o.Concurrency < 0:
		wrong = append(wrong, fmt.Errorf("a Concurrency of %d registers nothing; it must be at least 1", o.Concurrency))
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
		return errors.New("a handler needs the type of plugins that it is for, such as CSIPlugin")
	case handler == nil:
		return fmt.Errorf("the handler for %s is nil", kind)
	}
	return nil
}
