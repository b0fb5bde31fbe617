package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/kubelet/remote"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// changes are what remote.Follow and the client's Watch yield.
type changes = iter.Seq2[remote.Change, error]

// following gives Follow, which cannot fail, that shape.
func following(all iter.Seq[remote.Change]) changes {
	return func(yield func(remote.Change, error) bool) {
		for c := range all {
			if !yield(c, nil) {
				return
			}
		}
	}
}

// writeDocuments writes each change as one line of JSON.
func writeDocuments(out io.Writer, all changes) error {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	for c, err := range all {
		if err != nil {
			return err
		}
		if err := e.Encode(c); err != nil {
			return fmt.Errorf("write an event: %w", err)
		}
	}
	return nil
}

// writeLines writes a line when a plugin comes to rest: it is registered, has
// failed, or is gone.
func writeLines(out io.Writer, all changes) error {
	for c, err := range all {
		if err != nil {
			return err
		}
		if c.Plugin == nil || !slices.Contains([]watch.Phase{watch.Registered, watch.Failed, watch.Gone}, c.Plugin.Phase) {
			continue
		}
		p := c.Plugin
		parts := slices.DeleteFunc([]string{moment(c.Time), fmt.Sprintf("%-10s", stateOf(*p)), p.Type, p.Name, p.Socket}, func(s string) bool { return s == "" })
		line := strings.Join(parts, "  ")
		if why := meaning(*p); why != "" {
			line += "  " + why
		}
		if _, err := fmt.Fprintln(out, cli.Plain(line)); err != nil {
			return fmt.Errorf("write a line: %w", err)
		}
	}
	return nil
}

// calm is how long changes are collected before the table is drawn anew.
const calm = 50 * time.Millisecond

// showLive keeps a table on a terminal until ctx or the changes end.
func showLive(ctx context.Context, screen *cli.Screen, directory string, all changes) error {
	ctx, cancel := context.WithCancel(ctx)
	arriving, ended := make(chan remote.Change), make(chan error, 1)
	go func() { ended <- feed(ctx, arriving, all) }()
	table := map[string]watch.Status{}
	draw := func() {
		screen.Show(liveLines(directory, slices.Collect(maps.Values(table)), screen.Rows()))
	}
	var due <-chan time.Time
	for {
		select {
		case c := <-arriving:
			apply(table, c)
			if due == nil {
				due = time.After(calm)
			}
		case <-due:
			due = nil
			draw()
		case err := <-ended:
			cancel()
			draw()
			return err
		}
	}
}

// feed hands changes over until they or ctx end.
func feed(ctx context.Context, to chan<- remote.Change, all changes) error {
	for c, err := range all {
		if err != nil {
			return err
		}
		select {
		case to <- c:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

func apply(table map[string]watch.Status, c remote.Change) {
	switch c.Kind {
	case remote.Present:
		table[c.Plugin.Socket] = *c.Plugin
	case remote.Gone:
		delete(table, c.Plugin.Socket)
	case remote.Restart:
		clear(table)
	}
}
