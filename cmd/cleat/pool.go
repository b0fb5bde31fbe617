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
		Use:   "pool",
		Short: "Manage the storage pool of this machine",
		Long:  `Manages the storage pool of this machine while its driver is stopped.`,
		Example: `  sudo cleat pool remove
  sudo cleat pool rebuild`,
	}
	c.AddCommand(newPoolRemoveCommand(), newPoolRebuildCommand())
	setUpGroup(c)
	return c
}

func addPoolFlags(fs *pflag.FlagSet, c *local.Config) {
	fs.StringVar(&c.Pool, "pool", defaultPool, "directory of the pool; its image is this path with .img appended")
	fs.StringVar(&c.StateDir, "state-dir", defaultState, "directory in which the driver recorded the identity of the pool")
}

func newPoolRemoveCommand() *cobra.Command {
	var f session
	var config local.Config
	var options local.RemoveOptions
	c := &cobra.Command{
		Use:   "remove",
		Short: "Delete the storage pool of this machine if it is not in use",
		Long: `Deletes a pool created by cleat csi: unmounts its image, if it has one, and deletes
image, files and directory. It also deletes the pool identity that the driver
recorded in --state-dir, so that a new pool can be created there.

The command refuses, and changes nothing, while a driver serves the pool, while a
volume is attached (also as raw block volume, deleted file or mount in a
container), while volumes or snapshots exist, and if the directory contains other
files. It is idempotent, and completes an interrupted removal.`,
		Example: `  sudo cleat pool remove
  sudo cleat pool remove --pool /data/cleat --state-dir /var/lib/cleat/csi
  sudo cleat pool remove --delete-volumes`,
	}
	// The environment cannot permit the deletion of data.
	c.Flags().BoolVar(&options.DeleteVolumes, "delete-volumes", false, "also delete volumes and snapshots with their data")
	f.env = pflag.NewFlagSet("environment", pflag.ContinueOnError)
	addPoolFlags(f.env, &config)
	cli.DescribeEnv(f.env)
	c.Flags().AddFlagSet(f.env)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.bind(); err != nil {
			return err
		}
		return f.run(cmd, "removing the pool", func(ctx context.Context, _ func(string)) error {
			removed, err := local.Remove(ctx, config, options)
			text := "pool not found at " + config.Pool
			if removed {
				text = "pool " + config.Pool + " is removed"
			}
			return f.printResult(cmd, cli.Text(text), nil, err)
		})
	}
	return c
}
