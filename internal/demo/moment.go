package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
)

const (
	groupName = "both"
	countFile = "count"
)

// counter writes 1, 2, 3... to two volumes in turn, durably: the first one is
// never behind the second, and never ahead of it by more than one. Only a cut
// of both at one moment shows them so.
type counter struct {
	first, second string // files
	reached       atomic.Int64
	stop          context.CancelFunc
	wait          sync.WaitGroup
}

// startCounter starts the writer; fail is told when it meets an error.
func startCounter(ctx context.Context, fail context.CancelCauseFunc, first, second string) *counter {
	c := &counter{first: filepath.Join(first, countFile), second: filepath.Join(second, countFile)}
	ctx, c.stop = context.WithCancel(ctx)
	c.wait.Go(func() {
		for n := int64(1); ctx.Err() == nil; n++ {
			if err := errors.Join(writeCount(c.first, n), writeCount(c.second, n)); err != nil {
				fail(err)
				return
			}
			c.reached.Store(n)
		}
	})
	return c
}

// end stops the counter.
func (c *counter) end() {
	c.stop()
	c.wait.Wait()
}

// writeCount replaces a number in place: ten digits, so that no part of it can
// be seen alone.
func writeCount(path string, n int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%010d", n)
	return errors.Join(err, f.Sync(), f.Close())
}

func readCount(dir string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(dir, countFile))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}

// group cuts two volumes at one moment while both are written to, and looks
// into the cut.
func group(ctx context.Context, w *walk) (string, error) {
	if err := w.cutWhileCounting(ctx); err != nil {
		return "", err
	}
	counts, err := w.countsOf(ctx)
	if err != nil {
		return "", err
	}
	if ahead := counts[data] - counts[logs]; ahead < 0 || ahead > 1 {
		return "", fmt.Errorf("the group is no one moment: a writer that always goes to %s first stands at %d there and at %d in %s", data, counts[data], counts[logs], logs)
	}
	for _, name := range []string{data, logs} {
		if err := os.Remove(filepath.Join(w.target(name), countFile)); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("a writer that takes turns stood at %d in %s and at %d in %s", counts[data], data, counts[logs], logs), nil
}

func (w *walk) cutWhileCounting(ctx context.Context) error {
	working, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	c := startCounter(working, fail, w.target(data), w.target(logs))
	defer c.end()
	err := waitFor(working, func() bool { return c.reached.Load() >= 3 })
	if err == nil {
		_, err = w.client.CreateGroup(working, groupName, []string{data, logs}, nil)
	}
	if err == nil { // both go on being written to
		after := c.reached.Load()
		err = waitFor(working, func() bool { return c.reached.Load() >= after+3 })
	}
	if cause := context.Cause(working); cause != nil {
		return cause
	}
	return err
}

// countsOf reads the counts from volumes made from the group's snapshots.
func (w *walk) countsOf(ctx context.Context) (map[string]int64, error) {
	g, err := w.client.ShowGroup(ctx, groupName)
	if err != nil {
		return nil, err
	}
	counts := map[string]int64{}
	for _, name := range []string{data, logs} {
		v, err := w.client.Show(ctx, name)
		if err != nil {
			return nil, err
		}
		for _, s := range g.Snapshots {
			if s.Source != v.ID {
				continue
			}
			from := name + "-in-group"
			if err := w.copyOf(ctx, from, s.ID, 0); err != nil {
				return nil, err
			}
			if counts[name], err = readCount(w.target(from)); err != nil {
				return nil, err
			}
			if err := w.discard(ctx, from); err != nil {
				return nil, err
			}
		}
	}
	if len(counts) != 2 {
		return nil, fmt.Errorf("the group should hold snapshots of %s and %s: %+v", data, logs, g)
	}
	return counts, nil
}
