package main

import (
	"bytes"
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/kubelet/watch"
)

func pluginTable(all []watch.Status) cli.Table {
	t := cli.Table{Header: []string{"NAME", "TYPE", "STATE", "SINCE", "VERSIONS", "ENDPOINT", "SOCKET"}}
	for _, p := range all {
		t.Rows = append(t.Rows, []string{
			p.Name, p.Type, stateOf(p), moment(p.Since), strings.Join(p.Versions, ","), p.Endpoint, p.Socket,
		})
	}
	return t
}

func stateOf(p watch.Status) string {
	if p.Dead {
		return string(p.Phase) + ", dead"
	}
	return string(p.Phase)
}

// meaning is what is known of a plugin's last failure, in a line.
func meaning(p watch.Status) string {
	text := cmp.Or(p.Reason, p.Error)
	if text == "" {
		return ""
	}
	text = strings.Join(strings.Fields(text), " ")
	step := string(p.Step)
	if !p.NextTry.IsZero() {
		step += ", next try " + p.NextTry.Local().Format("15:04:05")
	}
	if step != "" { // before the text, which may be cut off
		text = step + ": " + text
	}
	return text
}

// liveLines is the table of cleat host on a terminal with so many rows. Who
// needs a look comes first, each with its reason below.
func liveLines(directory string, all []watch.Status, rows int) []string {
	all = slices.SortedStableFunc(slices.Values(all), func(a, b watch.Status) int {
		return cmp.Or(cmp.Compare(urgency(a), urgency(b)), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Socket, b.Socket))
	})
	kept := []string{fmt.Sprintf("Plugins below %s: %s", directory, tally(all))}
	if len(all) == 0 {
		return kept
	}
	lines := tableLines(directory, all[:min(len(all), max(1, rows))]) // there is no room for more
	kept = append(kept, lines[0])
	for i, p := range all {
		group := []string{lines[1+i]}
		if why := meaning(p); why != "" {
			group = append(group, "    "+cli.Plain(why))
		}
		room := rows - len(kept) - len(group)
		if room < 0 || room == 0 && i < len(all)-1 { // the last line says how many more
			return append(kept, fmt.Sprintf("… and %d more", len(all)-i))
		}
		kept = append(kept, group...)
	}
	return kept
}

// tableLines is the header and a line for each plugin.
func tableLines(directory string, all []watch.Status) []string {
	t := cli.Table{Header: []string{"NAME", "TYPE", "STATE", "SINCE", "SOCKET"}}
	for _, p := range all {
		socket := p.Socket
		if below, err := filepath.Rel(directory, p.Socket); err == nil {
			socket = below
		}
		t.Rows = append(t.Rows, []string{p.Name, p.Type, stateOf(p), moment(p.Since), socket})
	}
	var text bytes.Buffer
	_ = t.Write(&text) // a buffer takes everything
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

// tally counts plugins by state, as "2 registered, 1 failed".
func tally(all []watch.Status) string {
	if len(all) == 0 {
		return "none yet"
	}
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
	return strings.Join(parts, ", ")
}
