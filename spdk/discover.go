package spdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/backoff"
)

// Version is the version of the process.
type Version struct {
	Text                string // "SPDK v24.01.1"
	Major, Minor, Patch int
	Suffix              string // "-pre"
}

func (v Version) String() string { return v.Text }

// UnmarshalJSON decodes the result of spdk_get_version. Without numeric fields
// the text is parsed.
func (v *Version) UnmarshalJSON(raw []byte) error {
	var wire struct {
		Version string
		Fields  *struct {
			Major, Minor, Patch int
			Suffix              string
		}
	}
	if err := json.Unmarshal(raw, &wire); err != nil {
		return err
	}
	*v = Version{Text: wire.Version}
	if f := wire.Fields; f != nil {
		v.Major, v.Minor, v.Patch, v.Suffix = f.Major, f.Minor, f.Patch, f.Suffix
		return nil
	}
	m := regexp.MustCompile(`v?(\d+)\.(\d+)(?:\.(\d+))?(-[A-Za-z0-9]+)?`).FindStringSubmatch(wire.Version)
	if m == nil {
		return fmt.Errorf("invalid version %q", wire.Version)
	}
	v.Major, _ = strconv.Atoi(m[1])
	v.Minor, _ = strconv.Atoi(m[2])
	v.Patch, _ = strconv.Atoi(m[3]) // a missing one is 0
	v.Suffix = m[4]
	return nil
}

// MethodSet is the set of methods of a process.
type MethodSet struct{ names map[string]struct{} }

func NewMethodSet(names ...string) MethodSet {
	m := MethodSet{make(map[string]struct{}, len(names))}
	for _, n := range names {
		m.names[n] = struct{}{}
	}
	return m
}

// Has reports whether the set contains all of the methods.
func (m MethodSet) Has(names ...string) bool {
	return !slices.ContainsFunc(names, func(n string) bool { _, ok := m.names[n]; return !ok })
}

// Names returns the methods, sorted.
func (m MethodSet) Names() []string { return slices.Sorted(maps.Keys(m.names)) }

// Version is cached until a connection is lost or, with a URL, a call fails in a
// way that another process can cause.
func (c *Client) Version(ctx context.Context) (Version, error) {
	epoch, known, _ := c.known()
	if known != nil {
		return *known, nil
	}
	var v Version
	if err := c.Call(ctx, "spdk_get_version", nil, &v); err != nil {
		return Version{}, err
	}
	c.learn(epoch, func(f *facts) { f.version = &v })
	return v, nil
}

// methodOfStart is only accepted before the initialisation.
const methodOfStart = "framework_start_init"

// IsStarting reports whether the process was not initialised yet. Then it accepts
// few methods.
func (m MethodSet) IsStarting() bool { return m.Has(methodOfStart) }

// Methods returns the methods accepted in the current state of the process,
// cached like Version, but not before the initialisation.
func (c *Client) Methods(ctx context.Context) (MethodSet, error) {
	epoch, _, known := c.known()
	if known != nil {
		return *known, nil
	}
	var names []string
	if err := c.Call(ctx, "rpc_get_methods", map[string]bool{"current": true}, &names); err != nil {
		return MethodSet{}, err
	}
	m := NewMethodSet(names...)
	if !m.IsStarting() {
		c.learn(epoch, func(f *facts) { f.methods = &m })
	}
	return m, nil
}

func (c *Client) known() (epoch uint64, v *Version, m *MethodSet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.facts.epoch, c.facts.version, c.facts.methods
}

// learn caches a result, unless a connection was lost since: the result can be
// from the previous process.
func (c *Client) learn(epoch uint64, keep func(*facts)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.facts.epoch == epoch {
		keep(&c.facts)
	}
}

const (
	firstPause = 20 * time.Millisecond
	longPause  = time.Second
)

// WaitReady waits until the process is initialised, also for a missing socket
// and after lost connections: a process whose initialisation fails also accepts
// connections. Errors: errs.Unavailable if ctx ends; an *Error if the process
// returns an error.
func (c *Client) WaitReady(ctx context.Context) error {
	var last error
	for pause := (backoff.Backoff{First: firstPause, Most: longPause}); ; {
		err := c.ready(ctx)
		switch {
		case err == nil:
			return nil
		case errs.KindOf(err) != errs.Unavailable || errors.Is(err, errClosed):
			return err
		case last == nil || ctx.Err() == nil:
			last = err
		}
		if pause.Wait(ctx) != nil {
			return errs.Errorf(errs.Unavailable, "the SPDK process at %s is not ready: %w", c.Address(), last)
		}
	}
}

// ready makes one attempt. framework_wait_init returns after the
// initialisation.
func (c *Client) ready(ctx context.Context) error {
	err := c.Call(ctx, "framework_wait_init", nil, nil)
	if err != nil && !errors.Is(err, UnknownMethod) {
		return err
	}
	c.mu.Lock()
	c.forget() // the methods differ before initialisation
	c.mu.Unlock()
	_, err = c.Version(ctx)
	return err
}
