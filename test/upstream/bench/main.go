// Command bench compares the project's plugin host with the kubelet's plugin
// manager, in one run, each in its own process beside the process with the
// plugins. Run it in the directory of its module.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"time"
)

func main() {
	only := flag.String("figures", "", "take only the figures that match this")
	flag.Parse()
	if err := run(context.Background(), *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// subject is one of the two hosts in one measurement.
type subject struct {
	kind string
	dir  string // the plugins directory
	host *process
	row  func(figure string, value value)
}

// measurement takes some figures of one host. Short ones are repeated, the
// hosts alternately, and the median counts, because of other load on the
// machine.
type measurement struct {
	name  string
	times int
	take  func(ctx context.Context, s *subject) error
}

var measurements = []measurement{
	{"one plugin", 1, one},
	{"1,000 plugins", 5, thousand},
	{"1,000 at start", 5, atStart},
	{"100 idle", 1, func(ctx context.Context, s *subject) error { return idleWith(ctx, s, 100) }},
	{"1,000 idle", 1, func(ctx context.Context, s *subject) error { return idleWith(ctx, s, 1000) }},
	{"silent", 3, silentSockets},
	{"4,000 at once", 1, func(ctx context.Context, s *subject) error { return atOnce(ctx, s, 4000) }},
	{"8,000 at once", 1, func(ctx context.Context, s *subject) error { return atOnce(ctx, s, 8000) }},
}

func run(ctx context.Context, only string) error {
	match, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	base, err := os.MkdirTemp("", "b") // short, for the 107 bytes of a socket's path
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(base) }()
	if err := build(ctx, base); err != nil {
		return err
	}
	t := newTable()
	fmt.Printf("two processes on %d processors, %s, %s\n\n", runtime.NumCPU(), runtime.Version(), time.Now().UTC().Format(time.DateOnly))
	// The longest measurement uses little processor time, and runs beside the
	// others.
	waiting := make(chan error, 1)
	if match.MatchString(stale.name) {
		go func() { waiting <- both(ctx, base, t, stale) }()
	} else {
		waiting <- nil
	}
	for _, m := range measurements {
		if match.MatchString(m.name) {
			fmt.Fprintln(os.Stderr, m.name)
			if err := each(ctx, base, t, m); err != nil {
				return err
			}
		}
	}
	if err := <-waiting; err != nil {
		return err
	}
	return t.print(os.Stdout)
}

// each measures the hosts one after the other.
func each(ctx context.Context, base string, t *table, m measurement) error {
	for range m.times {
		for _, kind := range kinds {
			if err := take(ctx, base, kind, t, m); err != nil {
				return fmt.Errorf("%s: %s: %w", m.name, kind, err)
			}
		}
	}
	return nil
}

// both measures the hosts at the same time.
func both(ctx context.Context, base string, t *table, m measurement) error {
	done := make(chan error, len(kinds))
	for _, kind := range kinds {
		go func() { done <- take(ctx, base, kind, t, m) }()
	}
	var failed []error
	for range kinds {
		failed = append(failed, <-done)
	}
	return errors.Join(failed...)
}

func take(ctx context.Context, base, kind string, t *table, m measurement) (err error) {
	dir, err := os.MkdirTemp(base, kind[:1])
	if err != nil {
		return err
	}
	s := &subject{kind: kind, dir: dir, row: func(figure string, v value) { t.add(figure, kind, v) }}
	if s.host, err = launch(filepath.Join(base, kind), dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.host.end()) }()
	return m.take(ctx, s)
}
