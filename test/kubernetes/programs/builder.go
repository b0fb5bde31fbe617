package programs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/internal/linux/flock"
)

// builder fills sets. Its cache has the file "lock", which protects all
// changes, a directory per set, and hidden directories for builds in progress.
// Programs are renamed into their set atomically.
type builder struct {
	root    string // of the source tree
	cache   string
	modules []module
	log     io.Writer
}

const (
	crdsDir = "crds"
	// making is the name prefix of directories for builds in progress.
	making = ".making-"
)

func (b *builder) build(ctx context.Context, want []string) (_ Set, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("build the programs of Kubernetes: %w", err)
		}
	}()
	if want, err = b.wanted(want); err != nil {
		return Set{}, err
	}
	id, err := b.hash(ctx)
	if err != nil {
		return Set{}, err
	}
	set := Set{Dir: filepath.Join(b.cache, id)}
	if err := os.MkdirAll(b.cache, 0o755); err != nil {
		return Set{}, err
	}
	lock, err := b.lock(ctx)
	if err != nil {
		return Set{}, err
	}
	defer lock.Close()
	if err := errors.Join(b.clear(), os.MkdirAll(set.Dir, 0o755), used(set.Dir), b.prune(id, time.Now())); err != nil {
		return Set{}, err
	}
	start, built := time.Now(), false
	for _, m := range b.modules {
		missing, err := m.missing(set, want)
		if err != nil {
			return Set{}, err
		}
		if !missing.empty() {
			built = true
			if err := b.make(ctx, m, set, missing); err != nil {
				return Set{}, err
			}
		}
	}
	if built {
		b.logf("the programs of Kubernetes are in %s after %s", set.Dir, since(start))
	}
	return set, nil
}

// wanted returns want without duplicates, or all programs except tests if want
// is empty.
func (b *builder) wanted(want []string) ([]string, error) {
	known := names(b.modules)
	if len(want) == 0 {
		for _, m := range b.modules {
			for _, p := range m.all {
				if !p.test {
					want = append(want, p.name)
				}
			}
		}
	}
	for _, name := range want {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("unknown program %q: want some of %s", name, strings.Join(known, ", "))
		}
	}
	return want, nil
}

// lock takes the cache's lock, which the kernel releases when the process ends.
func (b *builder) lock(ctx context.Context) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(b.cache, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err = flock.Try(lock); errors.Is(err, flock.ErrHeld) {
		b.logf("another process builds the programs of Kubernetes: waiting for it")
		err = flock.Lock(ctx, lock)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// work lists what a set lacks of a module.
type work struct {
	programs, tests []program
	crds            []crds
}

func (w work) empty() bool { return len(w.programs)+len(w.tests)+len(w.crds) == 0 }

// missing returns what the set lacks of the wanted programs of m. A module's
// CRDs come with any of its programs.
func (m module) missing(set Set, want []string) (w work, err error) {
	asked := false
	for _, p := range m.all {
		if !slices.Contains(want, p.name) {
			continue
		}
		asked = true
		switch there, err := isComplete(set.Path(p.name)); {
		case err != nil:
			return work{}, err
		case there:
		case p.test:
			w.tests = append(w.tests, p)
		default:
			w.programs = append(w.programs, p)
		}
	}
	if !asked {
		return w, nil
	}
	for _, s := range m.sources {
		for _, c := range s.crds {
			there, err := isComplete(filepath.Join(set.Dir, crdsDir, c.name))
			if err != nil {
				return work{}, err
			}
			if !there {
				w.crds = append(w.crds, c)
			}
		}
	}
	return w, nil
}

// isComplete reports whether path exists and is not empty: after a power loss,
// a renamed file can be empty.
func isComplete(path string) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return info.Size() > 0, nil
}

func (b *builder) logf(format string, args ...any) {
	if b.log != nil {
		fmt.Fprintf(b.log, format+"\n", args...)
	}
}

func since(start time.Time) time.Duration { return time.Since(start).Round(time.Second) }
