package main

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/engine/local"
	"github.com/cleatproject/cleat/internal/cli"
)

func newPoolCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "pool",
		Short:   "Remove the storage pool of this machine",
		Long:    `Manages the storage pool of this machine while its driver is stopped.`,
		Example: `  sudo cleat pool remove`,
	}
	c.AddCommand(newPoolRemoveCommand())
	onlyHolds(c)
	return c
}

func newPoolRemoveCommand() *cobra.Command {
	var f session
	var config local.Config
	var options local.RemoveOptions
	c := &cobra.Command{
		Use:   "remove",
		Short: "Delete the storage pool of this machine, unless any of it is in use",
		Long: `Deletes a pool that cleat csi has created: unmounts its image, if it has one, and
deletes image, files and directory, and the identity of the pool that the driver
recorded in --state-dir, so that another pool can be created there.

It refuses, and changes nothing, while a driver serves the pool, while any volume
is attached, also raw block volumes, deleted files and mounts in containers, while
volumes or snapshots exist, and when the directory holds other files. It can be
repeated, and completes a removal that was interrupted.`,
		Example: `  sudo cleat pool remove
  sudo cleat pool remove --pool /data/cleat --state-dir /var/lib/cleat/csi
  sudo cleat pool remove --delete-volumes`,
	}
	// A permission to delete data is not left to the environment.
	c.Flags().BoolVar(&options.DeleteVolumes, "delete-volumes", false, "delete volumes and snapshots too, with their data")
	f.env = pflag.NewFlagSet("environment", pflag.ContinueOnError)
	f.env.StringVar(&config.Pool, "pool", defaultPool, "directory of the pool; its image is this path with .img appended")
	f.env.StringVar(&config.StateDir, "state-dir", defaultState, "directory in which the driver recorded the identity of the pool")
	cli.DescribeEnv(f.env)
	c.Flags().AddFlagSet(f.env)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.bind(); err != nil {
			return err
		}
		return f.run(cmd, "removing the pool", func(ctx context.Context, _ func(string)) error {
			removed, err := local.Remove(ctx, config, options)
			text := "no pool exists at " + config.Pool
			if removed {
				text = "pool " + config.Pool + " is removed"
			}
			return f.answer(cmd, cli.Text(text), nil, err)
		})
	}
	return c
}
