package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/kubelet/remote"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// changes is the sequence of Host.Watch.
type changes = iter.Seq2[remote.Change, error]

func withoutErrors(all iter.Seq[remote.Change]) changes {
	return func(yield func(remote.Change, error) bool) {
		for c := range all {
			if !yield(c, nil) {
				return
			}
		}
	}
}

// ofType drops changes of other types, unless kind is empty. A plugin that
// changes its type is reported as gone.
func ofType(kind string, all changes) changes {
	return func(yield func(remote.Change, error) bool) {
		present := map[string]bool{}
		for c, err := range all {
			if p := c.Plugin; p != nil && kind != "" {
				if p.Type != kind {
					c.Kind = remote.Gone
				}
				before := present[p.Socket]
				present[p.Socket] = c.Kind == remote.Present
				if !before && !present[p.Socket] {
					continue
				}
			}
			if !yield(c, err) {
				return
			}
		}
	}
}

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

func writeLines(out io.Writer, all changes) error {
	for c, err := range all {
		if err != nil {
			return err
		}
		p := c.Plugin
		if p == nil || !slices.Contains([]watch.Phase{watch.Registered, watch.Failed, watch.Gone}, p.Phase) {
			continue
		}
		parts := []string{cli.Cell(c.Time), fmt.Sprintf("%-10s", stateOf(*p)), p.Type, p.Name, p.Socket, lastFailure(*p)}
		parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
		if err := cli.Text(strings.Join(parts, "  ")).Write(out); err != nil {
			return fmt.Errorf("write a line: %w", err)
		}
	}
	return nil
}

// lastFailure returns the error of the last failed attempt, in one line.
func lastFailure(p watch.Status) string {
	text := strings.Join(strings.Fields(cmp.Or(p.Reason, p.Error)), " ")
	if text == "" {
		return ""
	}
	step := string(p.Step)
	if !p.NextTry.IsZero() {
		step += ", next try " + p.NextTry.Local().Format(time.TimeOnly)
	}
	if step != "" { // the step first: the text can be truncated
		text = step + ": " + text
	}
	return text
}

// redrawDelay batches changes.
const redrawDelay = 50 * time.Millisecond

// showLive updates a table until ctx or the changes end.
func showLive(ctx context.Context, screen *cli.Screen, directory string, all changes) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
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
			switch c.Kind {
			case remote.Present:
				table[c.Plugin.Socket] = *c.Plugin
			case remote.Gone:
				delete(table, c.Plugin.Socket)
			case remote.Restart:
				clear(table)
			}
			if due == nil {
				due = time.After(redrawDelay)
			}
		case <-due:
			due = nil
			draw()
		case err := <-ended:
			draw()
			return err
		}
	}
}

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

// liveLines returns the table for rows lines: first plugins that need
// attention, each with its error.
func liveLines(directory string, all []watch.Status, rows int) []string {
	slices.SortStableFunc(all, func(a, b watch.Status) int {
		return cmp.Or(cmp.Compare(urgency(a), urgency(b)), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Socket, b.Socket))
	})
	kept := []string{fmt.Sprintf("Plugins below %s: %s", directory, tally(all))}
	if len(all) == 0 {
		return kept
	}
	lines := tableLines(directory, all[:min(len(all), max(1, rows))]) // the terminal has no space for more
	kept = append(kept, lines[0])
	for i, p := range all {
		group := []string{lines[1+i]}
		if why := lastFailure(p); why != "" {
			group = append(group, "    "+cli.Plain(why))
		}
		free := rows - len(kept) - len(group)
		if free < 0 || free == 0 && i < len(all)-1 { // the last line counts omitted plugins
			return append(kept, fmt.Sprintf("… and %d more", len(all)-i))
		}
		kept = append(kept, group...)
	}
	return kept
}

func tableLines(directory string, all []watch.Status) []string {
	t := cli.Table{Header: []string{"NAME", "TYPE", "STATE", "SINCE", "SOCKET"}}
	for _, p := range all {
		socket := p.Socket
		if below, err := filepath.Rel(directory, socket); err == nil {
			socket = below
		}
		t.Add(p.Name, p.Type, stateOf(p), p.Since, socket)
	}
	var text bytes.Buffer
	_ = t.Write(&text) // cannot fail
	return strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
}

func urgency(p watch.Status) int {
	switch {
	case p.Phase == watch.Failed || p.Dead:
		return 0
	case p.Phase == watch.Registered:
		return 2
	}
	return 1
}

// tally returns "2 registered, 1 failed".
func tally(all []watch.Status) string {
	counts := map[watch.Phase]int{}
	for _, p := range all {
		counts[p.Phase]++
	}
	var parts []string
	for _, phase := range []watch.Phase{
		watch.Registered, watch.Failed, watch.Waiting, watch.Asking, watch.Validating, watch.Registering, watch.Notifying, watch.DeRegistering,
	} {
		if n := counts[phase]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, phase))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "none yet")
}
