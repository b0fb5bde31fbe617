package bootlease

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cleatproject/cleat/internal/backoff"
)

// ReporterConfig configures a Reporter. Leases, Node, IsUsed and Dir are required.
type ReporterConfig struct {
	Leases *Leases
	Node   string
	// IsUsed reports whether volumes were attached in this boot, as far as the
	// kernel and records say.
	IsUsed func(context.Context) (bool, error)
	// Dir has the mark of a boot in which a volume was attached before the report.
	Dir string
	// Wait is how long volumes wait for the report; zero: 10 s.
	Wait time.Duration
	// Pause after a failure, doubled up to 32 times; zero: 500 ms.
	Pause  time.Duration
	Root   string // of the machine's files; "": /
	Logger *slog.Logger
}

// Reporter reports the boot of this machine. Its owner calls Admit before it
// attaches a volume.
type Reporter struct {
	ReporterConfig
	own report

	mu       sync.Mutex
	marked   bool          // a volume was admitted before the report
	opened   chan struct{} // closed: volumes no longer wait
	deadline time.Time     // of the wait, from the first call
}

// NewReporter makes no API call.
func NewReporter(c ReporterConfig) (*Reporter, error) {
	c.Wait, c.Pause = cmp.Or(c.Wait, 10*time.Second), cmp.Or(c.Pause, 500*time.Millisecond)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Reporter{ReporterConfig: c, opened: make(chan struct{})}
	var err error
	if r.own, err = readMachine(cmp.Or(c.Root, "/")); err != nil {
		return nil, err
	}
	mark, err := os.ReadFile(r.markFile())
	if err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("mark of unreported boots: %w", err)
	}
	r.marked = string(mark) == r.own.boot
	return r, nil
}

// markFile needs no fsync: after a crash of the machine it is of another boot.
func (r *Reporter) markFile() string { return filepath.Join(r.Dir, "unreported-boot") }

// Run reports the boot, and repeats what fails until the context ends.
func (r *Reporter) Run(ctx context.Context) error {
	if r.own.machine == "" {
		r.Logger.WarnContext(ctx, "machine-id or product_uuid is not known, a reboot of this node is not noticed", "node", r.Node)
	}
	var isUsed, isConfirmed bool
	if !r.repeat(ctx, func(ctx context.Context) (err error) {
		if isUsed, err = r.IsUsed(ctx); err != nil {
			return fmt.Errorf("list the attached volumes: %w", err)
		}
		isConfirmed, err = r.Leases.report(ctx, r.Node, r.own)
		return err
	}) {
		return nil
	}
	isLate := r.open() || isUsed
	if !isLate && !isConfirmed && !r.repeat(ctx, func(ctx context.Context) error { return r.Leases.confirm(ctx, r.Node, r.own) }) {
		return nil
	}
	r.Logger.InfoContext(ctx, "boot reported", "node", r.Node, "boot", r.own.boot, "late", isLate && !isConfirmed)
	return nil
}

// repeat returns false if the context ended first.
func (r *Reporter) repeat(ctx context.Context, do func(context.Context) error) bool {
	for pause := (backoff.Backoff{First: r.Pause, Most: 32 * r.Pause}); ; {
		err := do(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			r.Logger.WarnContext(ctx, "reporting the boot failed, will retry", "node", r.Node, "err", err)
		}
		if pause.Wait(ctx) != nil {
			return false
		}
	}
}

// open ends the wait of volumes. isMarked: some did not wait.
func (r *Reporter) open() (isMarked bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isOpen() {
		close(r.opened)
	}
	return r.marked
}

func (r *Reporter) isOpen() bool {
	select {
	case <-r.opened:
		return true
	default:
		return false
	}
}

func (r *Reporter) waitUntil() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.deadline.IsZero() {
		r.deadline = time.Now().Add(r.Wait)
	}
	return r.deadline
}

// Admit waits for the report before a volume is attached. Without one in time the
// boot is marked, and reported as late whenever that is possible.
func (r *Reporter) Admit(ctx context.Context) error {
	timeout := time.NewTimer(time.Until(r.waitUntil()))
	defer timeout.Stop()
	select {
	case <-r.opened:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the report of this boot: %w", ctx.Err())
	case <-timeout.C:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isOpen() {
		return nil
	}
	if err := os.WriteFile(r.markFile(), []byte(r.own.boot), 0o600); err != nil {
		return fmt.Errorf("mark this boot as not reported: %w", err)
	}
	r.marked = true
	close(r.opened)
	r.Logger.WarnContext(ctx, "volumes are attached before this boot is reported", "node", r.Node, "boot", r.own.boot)
	return nil
}
