package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/volume"
)

func volumeTable(all []client.Volume) cli.Table {
	t := cli.Table{Header: []string{"NAME", "SIZE", "TYPE", "STATE", "ATTACHED AT", "HEALTH", "CREATED", "ID"}}
	for _, v := range all {
		t.Rows = append(t.Rows, []string{
			v.Name, cli.HumanBytes(v.Size), kindOf(v.Capability, v.State), v.State, places(v), reasons(v.Conditions), moment(v.Created), dash(v.ID),
		})
	}
	return t
}

// volumeDetails is one volume, a line for each thing that is known.
func volumeDetails(v client.Volume) cli.Table {
	t := cli.Table{Header: []string{"NAME", v.Name}}
	row := func(name, value string) {
		if value != "" {
			t.Rows = append(t.Rows, []string{name, value})
		}
	}
	row("ID", v.ID)
	row("Driver", v.Driver)
	row("State", v.State)
	row("Size", fmt.Sprintf("%s (%d bytes)", cli.HumanBytes(v.Size), v.Size))
	row("Type", kindOf(v.Capability, v.State))
	row("Access mode", v.Capability.AccessMode)
	row("Mount flags", strings.Join(v.Capability.MountFlags, ","))
	row("From volume", v.Source.Volume)
	row("From snapshot", v.Source.Snapshot)
	row("Parameters", pairs(v.Parameters))
	row("Mutable parameters", pairs(v.Mutable))
	row("Volume context", pairs(v.Context))
	for _, segments := range v.Topology {
		row("Reachable from", pairs(segments))
	}
	row("Published to", strings.Join(v.Nodes, ", "))
	for _, target := range v.Targets {
		row("Attached at", placeOf(target))
	}
	row("Staged at", v.Staging)
	if !v.Created.IsZero() {
		row("Created", v.Created.Local().Format(time.RFC3339))
	}
	for _, c := range v.Conditions {
		row("Health", fmt.Sprintf("%s %s: %s", c.Severity, c.Reason, c.Message))
	}
	return t
}

func snapshotTable(all []client.Snapshot) cli.Table {
	t := cli.Table{Header: []string{"NAME", "SIZE", "READY", "STATE", "CUT", "VOLUME", "GROUP", "ID"}}
	for _, s := range all {
		t.Rows = append(t.Rows, []string{s.Name, cli.HumanBytes(s.Size), yes(s.Ready), s.State, moment(s.Created), cmp.Or(s.SourceName, s.Source, "-"), dash(s.Group), dash(s.ID)})
	}
	return t
}

func groupTable(all []client.Group) cli.Table {
	t := cli.Table{Header: []string{"NAME", "SNAPSHOTS", "READY", "STATE", "CUT", "ID"}}
	for _, g := range all {
		t.Rows = append(t.Rows, []string{g.Name, fmt.Sprint(len(g.Snapshots)), yes(g.Ready), g.State, moment(g.Created), dash(g.ID)})
	}
	return t
}

func memberTable(g client.Group) cli.Table {
	t := cli.Table{Header: []string{"VOLUME", "SIZE", "READY", "CUT", "SNAPSHOT"}}
	for _, s := range g.Snapshots {
		t.Rows = append(t.Rows, []string{cmp.Or(s.SourceName, s.Source, "-"), cli.HumanBytes(s.Size), yes(s.Ready), moment(s.Created), s.ID})
	}
	return t
}

// count is a number with its noun.
func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

func conditionTable(all []volume.Condition) cli.Table {
	t := cli.Table{Header: []string{"SEVERITY", "REASON", "MESSAGE"}}
	for _, c := range all {
		t.Rows = append(t.Rows, []string{string(c.Severity), c.Reason, c.Message})
	}
	return t
}

// kindOf is how a volume is used, in a word; nobody told about a foreign one.
func kindOf(c client.Capability, state string) string {
	switch {
	case c.Block:
		return "block"
	case c.FSType != "":
		return c.FSType
	case state == client.StateForeign:
		return "-"
	}
	return "mount"
}

func places(v client.Volume) string {
	var out []string
	for _, t := range v.Targets {
		out = append(out, placeOf(t))
	}
	return dash(strings.Join(out, ", "))
}

func placeOf(t client.Target) string {
	switch {
	case !t.Published:
		return t.Path + " (unfinished)"
	case t.ReadOnly:
		return t.Path + " (read-only)"
	}
	return t.Path
}

func reasons(all []volume.Condition) string {
	var out []string
	for _, c := range all {
		text := fmt.Sprintf("%s:%s", c.Severity, c.Reason)
		// A message that begins with a share tells how far something has come.
		if share, _, ok := strings.Cut(c.Message, " %"); ok && len(share) <= 3 && strings.Trim(share, "0123456789") == "" {
			text += " " + share + "%"
		}
		out = append(out, text)
	}
	return dash(strings.Join(out, ", "))
}

func pairs(m map[string]string) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		out = append(out, key+"="+m[key])
	}
	return strings.Join(out, " ")
}

func moment(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func dash(s string) string { return cmp.Or(s, "-") }
