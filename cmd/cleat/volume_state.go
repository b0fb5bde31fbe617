package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/volume"
)

func newVolumeStatsCommand(f *driverFlags) *cobra.Command {
	return &cobra.Command{
		Use:               "stats VOLUME",
		Short:             "Show how full an attached volume is",
		Example:           `  cleat volume stats data`,
		Args:              exactly("a VOLUME"),
		ValidArgsFunction: f.names(volumeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, "measuring volume "+args[0], func(ctx context.Context, d *client.Driver) error {
				usage, err := d.Stats(ctx, args[0])
				if err != nil {
					return err
				}
				return f.print(cmd, usageTable(usage), usage)
			})
		},
	}
}

func usageTable(all []client.Usage) cli.Table {
	t := cli.Table{Header: []string{"OF", "TOTAL", "USED", "AVAILABLE", "USED %"}}
	for _, u := range all {
		show := func(n int64) string { return fmt.Sprint(n) }
		if u.Unit == "BYTES" {
			show = cli.HumanBytes
		}
		share := "-"
		if u.Total > 0 {
			share = fmt.Sprintf("%.0f", 100*float64(u.Used)/float64(u.Total))
		}
		t.Rows = append(t.Rows, []string{u.Unit, show(u.Total), show(u.Used), show(u.Available), share})
	}
	return t
}

func newVolumeHealthCommand(f *driverFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "health [VOLUME]",
		Short: "Show what is wrong with a volume, or with the storage behind all",
		Long: `Shows what the driver says is wrong with a volume; without one, with the storage
behind all of them, as this node sees it. Good health is no line at all.`,
		Example: `  cleat volume health data
  cleat volume health`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: f.names(volumeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, "asking for health", func(ctx context.Context, d *client.Driver) error {
				ask, whose := d.StorageHealth, "the storage"
				if len(args) == 1 {
					ask = func(ctx context.Context) ([]volume.Condition, error) { return d.Health(ctx, args[0]) }
					whose = "volume " + args[0]
				}
				found, err := ask(ctx)
				if err != nil {
					return err
				}
				if len(found) == 0 {
					return f.say(cmd, []volume.Condition{}, "%s is healthy", whose)
				}
				return f.print(cmd, conditionTable(found), found)
			})
		},
	}
}
