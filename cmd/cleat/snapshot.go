package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/internal/cli"
)

func newSnapshotCommand() *cobra.Command {
	var f driverFlags
	c := &cobra.Command{
		Use:   "snapshot",
		Short: "Cut, list and delete snapshots of volumes",
		Long: `Cuts, lists and deletes snapshots: what a volume held at one moment. A snapshot
stays usable when its volume changes or is deleted. Make a volume from one with
cleat volume restore.`,
		Example: `  cleat snapshot create data --name before-upgrade
  cleat snapshot list --volume data
  cleat snapshot delete before-upgrade`,
	}
	f.add(c)
	c.AddCommand(newVolumeSnapshotCommand(&f, "create"), newSnapshotListCommand(&f), newSnapshotShowCommand(&f), newSnapshotDeleteCommand(&f))
	onlyHolds(c)
	return c
}

// newVolumeSnapshotCommand is cleat volume snapshot and cleat snapshot create.
func newVolumeSnapshotCommand(f *driverFlags, use string) *cobra.Command {
	var name string
	var parameters []string
	c := &cobra.Command{
		Use:   use + " VOLUME",
		Short: "Cut a snapshot of a volume",
		Long: `Cuts a snapshot of a volume, attached or not, and waits until it is ready. The
same name gives the same snapshot again, never a second one.`,
		Args:              exactly("a VOLUME"),
		ValidArgsFunction: f.names(volumeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			options, err := keyValues(parameters)
			if err != nil {
				return err
			}
			if name == "" {
				name = fmt.Sprintf("%s-%s", args[0], time.Now().UTC().Format("20060102-150405"))
			}
			return f.run(cmd, "cutting snapshot "+name, func(ctx context.Context, d *client.Driver) error {
				s, err := d.CreateSnapshot(ctx, name, args[0], options)
				if err != nil {
					return err
				}
				return f.say(cmd, s, "snapshot %s is ready: %s, id %s", s.Name, cli.HumanBytes(s.Size), s.ID)
			})
		},
	}
	c.Example = "  cleat volume snapshot data --name before-upgrade"
	if use == "create" {
		c.Example = "  cleat snapshot create data --name before-upgrade"
	}
	c.Flags().StringVar(&name, "name", "", "name of the snapshot; VOLUME and the time without it")
	c.Flags().StringArrayVarP(&parameters, "parameter", "p", nil, "a parameter of the driver, key=value; may be repeated")
	return c
}

func newSnapshotListCommand(f *driverFlags) *cobra.Command {
	var source, leftOut string
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List snapshots",
		Example: `  cleat snapshot list --volume data
  kubectl get volumesnapshotcontents -o jsonpath='{.items[*].status.snapshotHandle}' | cleat snapshot list --not-in -`,
		Args: exactlyNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd, "listing snapshots", func(ctx context.Context, d *client.Driver) error {
				known, err := readIDs(cmd.InOrStdin(), leftOut)
				if err != nil {
					return err
				}
				all, err := d.Snapshots(ctx, source)
				if err != nil {
					return err
				}
				all = slices.DeleteFunc(all, func(s client.Snapshot) bool { return known[s.ID] })
				if all == nil {
					all = []client.Snapshot{}
				}
				return f.print(cmd, snapshotTable(all), all)
			})
		},
	}
	c.Flags().StringVar(&source, "volume", "", "only those of this volume")
	addNotIn(c, &leftOut)
	return c
}

func newSnapshotShowCommand(f *driverFlags) *cobra.Command {
	return &cobra.Command{
		Use:               "show SNAPSHOT",
		Short:             "Show one snapshot",
		Example:           `  cleat snapshot show before-upgrade -o yaml`,
		Args:              exactly("a SNAPSHOT"),
		ValidArgsFunction: f.names(snapshotNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, "looking at snapshot "+args[0], func(ctx context.Context, d *client.Driver) error {
				s, err := d.ShowSnapshot(ctx, args[0])
				if err != nil {
					return err
				}
				return f.print(cmd, snapshotTable([]client.Snapshot{s}), s)
			})
		},
	}
}

func newSnapshotDeleteCommand(f *driverFlags) *cobra.Command {
	var ifExists bool
	c := &cobra.Command{
		Use:     "delete SNAPSHOT...",
		Aliases: []string{"rm"},
		Short:   "Delete snapshots",
		Long: `Deletes snapshots. Volumes that were made from them stay. A member of a group is
deleted with its group.`,
		Example:           `  cleat snapshot delete before-upgrade`,
		Args:              atLeast("a SNAPSHOT"),
		ValidArgsFunction: f.names(snapshotNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, "deleting", func(ctx context.Context, d *client.Driver) error {
				return f.each(cmd, "snapshot", args, ifExists, func(ref string) error { return d.DeleteSnapshot(ctx, ref) })
			})
		},
	}
	c.Flags().BoolVar(&ifExists, "if-exists", false, "a snapshot that is not there is no error")
	return c
}
