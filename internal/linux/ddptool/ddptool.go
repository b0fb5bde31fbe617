// Package ddptool reads the DDP profile of a network adapter with Intel's
// ddptool, the only source for the 700 series (X710), whose driver does not
// report it by devlink.
package ddptool

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"time"
)

const (
	program = "ddptool"
	// fresh is the cache duration: the program queries the firmware.
	fresh     = time.Minute
	noProfile = 8
	maxOutput = 64 << 10
)

// ErrNotInstalled: the program is not in PATH.
var ErrNotInstalled = errors.New("the program ddptool is not installed")

// Installed reports whether the program is in PATH.
func Installed() bool {
	_, err := exec.LookPath(program)
	return err == nil
}

// Tool runs the program and caches its answers. Its methods are safe for
// concurrent use.
type Tool struct {
	Within time.Duration // timeout of one run; zero: 2 s

	mu    sync.Mutex
	known map[string]*answer // by address
}

// answer is complete when done is closed.
type answer struct {
	at      time.Time
	last    string // the previous profile
	done    chan struct{}
	profile string
	err     error
}

// Profile returns the adapter's profile at a PCI address, or "" without one.
// With an error it returns the previous profile. At most one run per address is
// in progress, even if it hangs.
func (t *Tool) Profile(ctx context.Context, address string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", ErrNotInstalled
	}
	within := cmp.Or(t.Within, 2*time.Second)
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	a := t.query(path, address, within)
	select {
	case <-a.done:
		return a.profile, a.err
	case <-ctx.Done():
		return a.last, fmt.Errorf("%s -s %s is still running: %w", program, address, ctx.Err())
	}
}

func (t *Tool) query(path, address string, within time.Duration) *answer {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := ""
	if a := t.known[address]; a != nil {
		select {
		case <-a.done:
			if last = a.profile; time.Since(a.at) < fresh {
				return a
			}
		default:
			return a
		}
	}
	if t.known == nil {
		t.known = map[string]*answer{}
	}
	a := &answer{at: time.Now(), last: last, done: make(chan struct{})}
	t.known[address] = a
	go func() {
		defer close(a.done)
		if a.profile, a.err = run(path, address, within); a.err != nil {
			a.profile = last
		}
	}()
	return a
}

type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	_, _ = l.Buffer.Write(p[:min(len(p), maxOutput-l.Len())])
	return len(p), nil
}

func run(path, address string, within time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	var out limited
	c := exec.CommandContext(ctx, path, "-l", "-a", "-j", "-s", address)
	c.Stdout, c.WaitDelay = &out, time.Second
	err := c.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == noProfile {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("%s -s %s: %w", program, address, err)
	}
	var all struct {
		DDPInventory struct {
			DDPpackage struct {
				Name string `json:"name"`
			}
		}
	}
	if err := json.Unmarshal(out.Bytes(), &all); err != nil {
		return "", fmt.Errorf("%s -s %s: its output is not JSON of the expected form: %w", program, address, err)
	}
	return all.DDPInventory.DDPpackage.Name, nil
}
