package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/volume"
)

func newVolumeListCommand(f *driverFlags) *cobra.Command {
	var notIn string
	c := &cobra.Command{
		Use:   "list",
		Short: "List volumes",
		Long: `Lists the volumes of the driver and those recorded in --state-dir; only the latter
if the driver does not support ListVolumes. ATTACHED AT has the paths of pods, too,
if the socket of the driver is in the directory of a kubelet.

States: ready; creating and deleting (an interrupted command: repeat it); foreign
(not created by these commands: the name is that of the PersistentVolume with
cleat's driver, otherwise the ID); missing (unknown to the driver).`,
		Example: `  cleat volume list
  cleat volume list -o json | jq '.[].name'
  kubectl get pv -o jsonpath='{.items[*].spec.csi.volumeHandle}' | cleat volume list --not-in -`,
	}
	addNotIn(c, &notIn)
	c.RunE = f.runE("listing volumes", func(ctx context.Context, d *client.Driver, _ []string) (cli.View, any, error) {
		known, err := readIDs(c.InOrStdin(), notIn)
		if err != nil {
			return nil, nil, err
		}
		all, err := d.List(ctx)
		all = slices.DeleteFunc(all, func(v client.Volume) bool { return known[v.ID] })
		t := cli.Table{Header: []string{"NAME", "SIZE", "TYPE", "STATE", "ATTACHED AT", "HEALTH", "CREATED", "ID"}}
		for _, v := range all {
			t.Add(v.Name, cli.HumanBytes(v.Size), kindOf(v), v.State, targetPaths(v), reasons(v.Conditions), v.Created, v.ID)
		}
		return t, all, err
	})
	return c
}

func addNotIn(c *cobra.Command, file *string) {
	c.Flags().StringVar(file, "not-in", "", "omit objects whose IDs are in this file, separated by white space; - reads standard input")
}

func readIDs(stdin io.Reader, name string) (map[string]bool, error) {
	if name == "" {
		return nil, nil
	}
	text, err := cli.ReadInput(stdin, name, 64<<20)
	if err != nil {
		return nil, fmt.Errorf("--not-in %s: %w", name, err)
	}
	known := map[string]bool{}
	for _, id := range strings.Fields(string(text)) {
		known[id] = true
	}
	if len(known) == 0 {
		return nil, fmt.Errorf("--not-in %s contains no IDs, so all objects would be listed as unused; did the command that writes it fail?", name)
	}
	return known, nil
}

func newVolumeShowCommand(f *driverFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "show VOLUME",
		Short:   "Show the details of a volume",
		Example: `  cleat volume show data -o yaml`,
		RunE: f.runE("getting the volume", func(ctx context.Context, d *client.Driver, args []string) (cli.View, any, error) {
			v, err := d.Show(ctx, args[0])
			return volumeDetails(v), v, err
		}),
	}
}

func volumeDetails(v client.Volume) cli.Table {
	t := cli.Table{Header: []string{"NAME", v.Name}}
	t.AddKnown("ID", v.ID)
	t.AddKnown("Driver", v.Driver)
	t.AddKnown("State", v.State)
	t.Add("Size", fmt.Sprintf("%s (%d bytes)", cli.HumanBytes(v.Size), v.Size))
	t.AddKnown("Type", kindOf(v))
	t.AddKnown("Access mode", v.Capability.AccessMode)
	t.AddKnown("Mount flags", strings.Join(v.Capability.MountFlags, ","))
	t.AddKnown("From volume", v.Source.Volume)
	t.AddKnown("From snapshot", v.Source.Snapshot)
	t.AddKnown("Parameters", v.Parameters)
	t.AddKnown("Mutable parameters", v.Mutable)
	t.AddKnown("Volume context", v.Context)
	for _, segments := range v.Topology {
		t.AddKnown("Reachable from", segments)
	}
	t.AddKnown("Published to", v.Nodes)
	for _, target := range v.Targets {
		t.Add("Attached at", describeTarget(target))
	}
	t.AddKnown("Staged at", v.Staging)
	if !v.Created.IsZero() {
		t.Add("Created", v.Created.Local().Format(time.RFC3339))
	}
	for _, c := range v.Conditions {
		t.Add("Health", fmt.Sprintf("%s %s: %s", c.Severity, c.Reason, c.Message))
	}
	return t
}

func kindOf(v client.Volume) string {
	switch c := v.Capability; {
	case c.Block:
		return "block"
	case c.FSType != "":
		return c.FSType
	case v.State == client.StateForeign:
		return "-"
	}
	return "mount"
}

func targetPaths(v client.Volume) string {
	var all []string
	for _, t := range v.Targets {
		all = append(all, describeTarget(t))
	}
	return strings.Join(all, ", ")
}

func describeTarget(t client.Target) string {
	switch {
	case !t.Published:
		return t.Path + " (incomplete)"
	case t.ReadOnly:
		return t.Path + " (read-only)"
	}
	return t.Path
}

func reasons(all []volume.Condition) string {
	var out []string
	for _, c := range all {
		text := fmt.Sprintf("%s:%s", c.Severity, c.Reason)
		// A message with a percentage reports progress.
		if before, _, ok := strings.Cut(c.Message, " % ("); ok {
			text += " " + before[strings.LastIndex(before, " ")+1:] + "%"
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}
