package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cli"
)

func newSnapshotCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "snapshot",
		Short: "Create, list and delete snapshots of volumes",
		Long: `Manages snapshots of volumes. A snapshot remains usable when its volume changes or
is deleted. "cleat volume restore" creates a volume from a snapshot.`,
		Example: `  cleat snapshot create data --name before-upgrade
  cleat snapshot list --volume data
  cleat snapshot delete before-upgrade`,
	}
	f := newDriverFlags(c)
	return f.group(c, newSnapshotCreateCommand(f, "create", "  cleat snapshot create data --name before-upgrade"),
		newSnapshotListCommand(f), newSnapshotShowCommand(f), newSnapshotDeleteCommand(f))
}

func newSnapshotCreateCommand(f *driverFlags, use, example string) *cobra.Command {
	var name string
	var parameters keyValues
	c := &cobra.Command{
		Use:   use + " VOLUME",
		Short: "Create a snapshot of a volume",
		Long: `Creates a snapshot of a volume, attached or not, and waits until it is ready. The
command is idempotent: the same name returns the same snapshot.`,
		Example: example,
		RunE: f.runE("creating the snapshot", func(ctx context.Context, d *client.Driver, args []string) (cli.View, any, error) {
			s, err := d.CreateSnapshot(ctx, cmp.Or(name, args[0]+time.Now().UTC().Format("-20060102-150405")), args[0], parameters)
			return cli.Textf("snapshot %s is ready: %s, id %s", s.Name, cli.HumanBytes(s.Size), s.ID), s, err
		}),
	}
	c.Flags().StringVar(&name, "name", "", "name of the snapshot; by default VOLUME and the time")
	addParameters(c, &parameters, "key=value; can be repeated")
	return c
}

func newSnapshotListCommand(f *driverFlags) *cobra.Command {
	var source, notIn string
	c := &cobra.Command{
		Use:   "list",
		Short: "List snapshots",
		Example: `  cleat snapshot list --volume data
  kubectl get volumesnapshotcontents -o jsonpath='{.items[*].status.snapshotHandle}' | cleat snapshot list --not-in -`,
	}
	c.Flags().StringVar(&source, "volume", "", "only snapshots of this volume")
	addNotIn(c, &notIn)
	c.RunE = f.runE("listing snapshots", func(ctx context.Context, d *client.Driver, _ []string) (cli.View, any, error) {
		known, err := readIDs(c.InOrStdin(), notIn)
		if err != nil {
			return nil, nil, err
		}
		all, err := d.Snapshots(ctx, source)
		all = slices.DeleteFunc(all, func(s client.Snapshot) bool { return known[s.ID] })
		return snapshotTable(all...), all, err
	})
	return c
}

func newSnapshotShowCommand(f *driverFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "show SNAPSHOT",
		Short:   "Show a snapshot",
		Example: `  cleat snapshot show before-upgrade -o yaml`,
		RunE: f.runE("getting the snapshot", func(ctx context.Context, d *client.Driver, args []string) (cli.View, any, error) {
			s, err := d.ShowSnapshot(ctx, args[0])
			return snapshotTable(s), s, err
		}),
	}
}

func snapshotTable(all ...client.Snapshot) cli.Table {
	t := cli.Table{Header: []string{"NAME", "SIZE", "READY", "STATE", "CREATED", "VOLUME", "GROUP", "ID"}}
	for _, s := range all {
		t.Add(s.Name, cli.HumanBytes(s.Size), s.Ready, s.State, s.Created, cmp.Or(s.SourceName, s.Source), s.Group, s.ID)
	}
	return t
}

func newSnapshotDeleteCommand(f *driverFlags) *cobra.Command {
	return f.deleteCommand("snapshot", &cobra.Command{
		Use:   "delete SNAPSHOT...",
		Short: "Delete snapshots",
		Long: `Deletes snapshots. Volumes created from them remain. A member of a group snapshot
is deleted with its group.`,
		Example: `  cleat snapshot delete before-upgrade`,
	}, (*client.Driver).DeleteSnapshot)
}

type blockDocument struct {
	Base     string      `json:"base,omitempty"`
	Snapshot string      `json:"snapshot"`
	Size     int64       `json:"sizeBytes"`
	Listed   int64       `json:"listedBytes"`
	Ranges   []byteRange `json:"ranges"`
}

type byteRange struct {
	Offset int64 `json:"offset"`
	Length int64 `json:"length"`
}

// add merges adjacent ranges: some drivers send single blocks.
func (b *blockDocument) add(p client.BlockPage) error {
	b.Size = p.Size
	for _, r := range p.Ranges {
		b.Listed += r.Length
		if n := len(b.Ranges); n > 0 && b.Ranges[n-1].Offset+b.Ranges[n-1].Length == r.Offset {
			b.Ranges[n-1].Length += r.Length
			continue
		}
		b.Ranges = append(b.Ranges, byteRange{r.Offset, r.Length})
	}
	return nil
}

func newChangedBlocksCommand(f *driverFlags) *cobra.Command {
	var from cli.Size
	c := &cobra.Command{
		Use:   "changed-blocks [BASE] SNAPSHOT",
		Short: "List changed blocks between two snapshots, or the allocated blocks of one",
		Long: `Lists the byte ranges that changed from the snapshot BASE to the later SNAPSHOT
(for incremental backups), or the allocated ranges of one snapshot (for full
backups).`,
		Example: `  cleat volume changed-blocks monday tuesday
  cleat volume changed-blocks monday -o json`,
	}
	c.Flags().Var(&from, "from", "start offset in bytes, to continue an interrupted list")
	c.RunE = f.runE("listing blocks", func(ctx context.Context, d *client.Driver, args []string) (cli.View, any, error) {
		doc := blockDocument{Snapshot: args[len(args)-1], Ranges: []byteRange{}}
		var err error
		if len(args) == 1 {
			err = d.Allocated(ctx, doc.Snapshot, int64(from), doc.add)
		} else {
			doc.Base = args[0]
			err = d.Delta(ctx, doc.Base, doc.Snapshot, int64(from), doc.add)
		}
		if errors.Is(err, errs.Precondition) {
			err = fmt.Errorf("%w; list all allocated blocks with: %s %s", err, c.CommandPath(), doc.Snapshot)
		}
		t := cli.Table{Header: []string{"OFFSET", "LENGTH", "SIZE"}}
		for _, r := range doc.Ranges {
			t.Add(r.Offset, r.Length, cli.HumanBytes(r.Length))
		}
		total := cli.Textf("%s, %s of %s", count(len(doc.Ranges), "range"), cli.HumanBytes(doc.Listed), cli.HumanBytes(doc.Size))
		return cli.Views{t, total}, doc, err
	})
	return c
}

func newGroupCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "group",
		Short: "Create, list and delete group snapshots of several volumes",
		Long: `Manages snapshots of several volumes at one point in time, for example of a
database and its log. The snapshots are deleted with their group. "cleat volume
restore" creates volumes from them, by their IDs.`,
		Example: `  cleat group create nightly database log
  cleat group show nightly
  cleat group delete nightly`,
	}
	f := newDriverFlags(c)
	return f.group(c, newGroupCreateCommand(f), newGroupListCommand(f), newGroupShowCommand(f), newGroupDeleteCommand(f))
}

func newGroupCreateCommand(f *driverFlags) *cobra.Command {
	var parameters keyValues
	c := &cobra.Command{
		Use:   "create NAME VOLUME...",
		Short: "Create a group snapshot of several volumes",
		Long: `Creates snapshots of all volumes at one point in time. The command is idempotent:
the same name and volumes return the same group. cleat's driver cannot freeze an
attached block volume: --parameter consistency=member accepts snapshots that are
consistent only individually.`,
		Example: `  cleat group create nightly database log`,
		RunE: f.runE("creating the group", func(ctx context.Context, d *client.Driver, args []string) (cli.View, any, error) {
			g, err := d.CreateGroup(ctx, args[0], args[1:], parameters)
			return cli.Textf("group %s is ready: %s, id %s", g.Name, count(len(g.Snapshots), "snapshot"), g.ID), g, err
		}),
	}
	addParameters(c, &parameters, "key=value; can be repeated")
	return c
}

func newGroupListCommand(f *driverFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List group snapshots",
		Long: `Lists the group snapshots created by this CLI with the same --state-dir: CSI has no
call that lists groups.`,
		Example: `  cleat group list`,
		RunE: f.runE("listing groups", func(ctx context.Context, d *client.Driver, _ []string) (cli.View, any, error) {
			all, err := d.Groups(ctx)
			t := cli.Table{Header: []string{"NAME", "SNAPSHOTS", "READY", "STATE", "CREATED", "ID"}}
			for _, g := range all {
				t.Add(g.Name, len(g.Snapshots), g.Ready, g.State, g.Created, g.ID)
			}
			return t, all, err
		}),
	}
}

func newGroupShowCommand(f *driverFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "show GROUP",
		Short:   "Show the snapshots of a group",
		Example: `  cleat group show nightly`,
		RunE: f.runE("getting the group", func(ctx context.Context, d *client.Driver, args []string) (cli.View, any, error) {
			g, err := d.ShowGroup(ctx, args[0])
			t := cli.Table{Header: []string{"VOLUME", "SIZE", "READY", "CREATED", "SNAPSHOT"}}
			for _, s := range g.Snapshots {
				t.Add(cmp.Or(s.SourceName, s.Source), cli.HumanBytes(s.Size), s.Ready, s.Created, s.ID)
			}
			return t, g, err
		}),
	}
}

func newGroupDeleteCommand(f *driverFlags) *cobra.Command {
	return f.deleteCommand("group", &cobra.Command{
		Use:     "delete GROUP...",
		Short:   "Delete groups with their snapshots",
		Example: `  cleat group delete nightly`,
	}, (*client.Driver).DeleteGroup)
}
